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


def poisson(rate: float, random: Random) -> Iterator[float]:
    now = 0.0
    while True:
        now += random.expovariate(rate)
        yield now


def bursts(rate: float, size: int, random: Random) -> Iterator[float]:
    """Yield each time of a Poisson process `size` times."""
    for moment in poisson(rate / size, random):
        yield from [moment] * size


def waits(longest: float, random: Random) -> Iterator[float]:
    """Yield times with uniformly random pauses of up to `longest`, as in the effective-batching study's client."""
    now = 0.0
    while True:
        yield now
        now += random.uniform(0, longest)


def evenly(rate: float) -> Iterator[float]:
    return accumulate(iter(lambda: 1 / rate, None), initial=0.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """A line of a trace."""

    at: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[Moment]:
    """Read JSON lines with `at`, `prompt_tokens` and `output_tokens`, as `weft simulate` does; times start at 0."""
    moments = [moment_of(line, f"{path}, line {number}") for number, line in enumerate(lines_of(path), 1)
               if line.strip()]
    if not moments:
        raise ValueError(f"{path} holds no request")
    first = min(moment.at for moment in moments)
    return sorted((replace(moment, at=moment.at - first) for moment in moments), key=lambda moment: moment.at)


def moment_of(line: str, where: str) -> Moment:
    try:
        read = json.loads(line)
        moment = Moment(float(read["at"]), int(read["prompt_tokens"]), int(read["output_tokens"]))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{where} is not an object with at, prompt_tokens and output_tokens: {error!r}") from None
    if not isfinite(moment.at) or min(moment.prompt_tokens, moment.output_tokens) < 1:
        raise ValueError(f"{where}: `at` is a number of seconds, and both lengths are at least 1")
    return moment


def lines_of(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Unlike `str.splitlines`, do not split at form feeds or Unicode separators."""
    try:
        return path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None
