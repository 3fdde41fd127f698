"""Requests and their times: the three workloads of the effective-batching study, and weft's own for rates and users.

The same seed gives the same requests. `speed` divides all times, so that a server that is faster than the study's gets
an equally heavy load.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from statistics import fmean

from benchmarks.bench.load import arrivals
from benchmarks.bench.load.record import Ask

FIGURE_LENGTHS = tuple(range(5, 150, 5))
HEAD_LENGTHS = 1, 25, 100
README_MEAN, README_DEVIATION, README_MOST = 100, 50, 200  # the study only specifies "normal, from 1 to 200"
BURST = 5
LENGTHS = tuple(range(8, 65, 8))  # of answers under load, beyond the study's
LETTERS = "abcdefghijklmnopqrstuvwxyz    "
SOLO_LENGTHS = 1, 25, 50, 100, 150, 200
PRESETS = "figure", "readme", "head"


def figure(random: Random) -> Iterator[tuple[float, int]]:
    """Yield the pause before each request, and its tokens: every length ten times, shuffled, in bursts of five."""
    lengths = [length for length in FIGURE_LENGTHS for _ in range(10)]
    random.shuffle(lengths)
    for number, length in enumerate(lengths):
        yield (random.uniform(0, 5) if number and number % BURST == 0 else 0.0), length


def readme(random: Random) -> Iterator[tuple[float, int]]:
    """Yield the pause before each request, a second on average, and its tokens."""
    while True:
        length = round(random.gauss(README_MEAN, README_DEVIATION))
        yield random.uniform(0, 2), min(max(length, 1), README_MOST)


def head(random: Random) -> Iterator[tuple[float, int]]:
    """Yield the pause before each request, and its tokens, as the study's client does by default."""
    while True:
        yield random.uniform(0, 1), random.choice(HEAD_LENGTHS)


KINDS = {"figure": figure, "readme": readme, "head": head}


def preset(name: str, seed: int, requests: int, speed: float) -> list[Ask]:
    asks: list[Ask] = []
    now, source = 0.0, KINDS[name](Random(seed))
    for number, (pause, length) in zip(range(requests), source, strict=False):
        now += pause / speed
        asks.append(Ask(number, f"Request {number}", length, at=now))
    return asks


def poisson(seed: int, requests: int, rate: float, size: int) -> list[Ask]:
    """Return requests for an open loop with `rate` arrivals per second."""
    moments = arrivals.poisson(rate, Random(seed))
    return [replace(ask, at=at) for ask, at in zip(closed(seed, requests, size), moments, strict=False)]


def closed(seed: int, requests: int, size: int) -> list[Ask]:
    """Return requests for a closed loop, with random prompts of `size` letters.

    All lengths are equally frequent, so that seeds differ in order and not in work."""
    random = Random(seed)
    lengths = [LENGTHS[number % len(LENGTHS)] for number in range(requests)]
    random.shuffle(lengths)
    return [Ask(number, letters(random, size), length) for number, length in enumerate(lengths)]


def alike(requests: int) -> list[Ask]:
    """Return requests of equal length, the mean of FIGURE_LENGTHS, so that those that start together end together."""
    return [Ask(number, f"Request {number}", round(fmean(FIGURE_LENGTHS))) for number in range(requests)]


def letters(random: Random, size: int) -> str:
    return "".join(random.choices(LETTERS, k=size))


def alone(kind: str, repeat: int, size: int) -> list[Ask]:
    """Return requests to be sent one after the other, to measure the latency of single requests."""
    if kind == "long":
        random = Random(0)
        return [Ask(number, letters(random, size), length) for number, length in enumerate(LENGTHS * repeat)]
    return [Ask(number, f"Request {number}", length) for number, length in enumerate(SOLO_LENGTHS * repeat)]

