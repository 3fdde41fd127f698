"""Arrival processes of open-loop loads: infinite iterators of seconds since the start, and traces.

A rate counts requests, also with bursts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite
from pathlib import Path
from random import Random


def iter_poisson_times(rate: float, random: Random) -> Iterator[float]:
    time = 0.0
    while True:
        time += random.expovariate(rate)
        yield time


def iter_burst_times(rate: float, requests_per_burst: int, random: Random) -> Iterator[float]:
    """Yield each time of a Poisson process `requests_per_burst` times."""
    for time in iter_poisson_times(rate / requests_per_burst, random):
        yield from [time] * requests_per_burst


def iter_random_burst_times(bursts_per_second: float, max_size: int, random: Random) -> Iterator[float]:
    """Yield each time of a Poisson process once for each request of a burst, of which there are 1 to `max_size`."""
    for time in iter_poisson_times(bursts_per_second, random):
        yield from [time] * random.randint(1, max_size)


def iter_times_with_uniform_pauses(max_pause: float, random: Random) -> Iterator[float]:
    """Yield times with uniformly random pauses of up to `max_pause`, as in the effective-batching study's client."""
    time = 0.0
    while True:
        yield time
        time += random.uniform(0, max_pause)


def iter_even_times(rate: float) -> Iterator[float]:
    """Yield times at equal distances."""
    return accumulate(iter(lambda: 1 / rate, None), initial=0.0)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A line of a trace."""

    at: float
    prompt_tokens: int
    output_tokens: int


def load_trace(path: Path) -> list[TraceRequest]:
    """Read JSON lines with `at`, `prompt_tokens` and `output_tokens`, as `weft simulate` does; times start at 0."""
    requests = [parse_trace_line(line, f"{path}, line {number}") for number, line in enumerate(read_lines(path), 1)
                if line.strip()]
    if not requests:
        raise ValueError(f"{path} holds no request")
    start = min(request.at for request in requests)
    return sorted((replace(request, at=request.at - start) for request in requests), key=lambda request: request.at)


def parse_trace_line(line: str, location: str) -> TraceRequest:
    try:
        parsed = json.loads(line)
        request = TraceRequest(float(parsed["at"]), int(parsed["prompt_tokens"]), int(parsed["output_tokens"]))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{location} is not an object with at, prompt_tokens and output_tokens: {error!r}") from None
    if not isfinite(request.at) or min(request.prompt_tokens, request.output_tokens) < 1:
        raise ValueError(f"{location}: `at` is a number of seconds, and both lengths are at least 1")
    return request


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Unlike `str.splitlines`, do not split at form feeds or Unicode separators."""
    try:
        return path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None
