"""When requests are sent that wait for nobody: seconds since the beginning, without end.

A rate is of requests, also where they come in bursts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random


def poisson(rate: float, random: Random) -> Iterator[float]:
    now = 0.0
    while True:
        now += random.expovariate(rate)
        yield now


def bursts(rate: float, size: int, random: Random) -> Iterator[float]:
    """So many at once, at random moments."""
    for moment in poisson(rate / size, random):
        yield from [moment] * size


def waits(longest: float, random: Random) -> Iterator[float]:
    """A pause of any length up to the longest behind each: what the client of the effective-batching study does."""
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
    """JSON lines with `at`, `prompt_tokens` and `output_tokens`, as `weft simulate` reads them."""
    moments = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            read = json.loads(line)
            moments.append(Moment(float(read["at"]), int(read["prompt_tokens"]), int(read["output_tokens"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is not an object with at, prompt_tokens and output_tokens: "
                             f"{error!r}") from None
    first = min((moment.at for moment in moments), default=0.0)
    return sorted((Moment(moment.at - first, moment.prompt_tokens, moment.output_tokens) for moment in moments),
                  key=lambda moment: moment.at)
