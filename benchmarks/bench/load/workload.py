"""Requests of a run, in order: prompts, lengths, adapters and, in an open loop, times.

The same settings and seed give the same requests, provided that tokens are counted in the same way.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, repeat, takewhile
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.bench.load.arrivals import Moment, bursts, evenly, poisson, read_trace, waits
from benchmarks.bench.load.lengths import lengths
from benchmarks.bench.load.prompts import Count, fit, read_prompts
from benchmarks.bench.load.record import Ask

AT_ONCE = 16  # prompts that are made and counted concurrently


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    requests: int = sys.maxsize  # the most; a trace or `seconds` may end earlier
    seconds: float = inf  # duration of sending in an open loop
    rate: float = 0.0  # requests per second; 0: a closed loop, `trace` or `wait`
    burst: int = 1
    even: bool = False
    wait: float | None = None  # the longest pause between two requests, as in the study's client
    trace: str = ""
    speed: float = 1.0  # of a trace
    prompt_tokens: str = "64"
    output_tokens: str = "64"
    prompts: str = ""
    shared_prefix: int = 0
    prefixes: int = 1
    adapters: tuple[str, ...] = ()
    descend: bool = False
    numbered: bool = False  # prompts are "Request 7", as in the study's client
    only: str = ""  # the only prompt
    seed: int = 0
    salt: str = ""  # changes the prompts, but neither their lengths nor their times

    @property
    def is_open(self) -> bool:
        """Whether requests are sent without waiting for earlier ones (open loop)."""
        return bool(self.rate or self.trace or self.wait is not None)

    @property
    def is_salted(self) -> bool:
        """Whether a different salt gives different prompts."""
        return not (self.only or self.prompts or self.numbered)

    @property
    def is_limited(self) -> bool:
        """Whether all requests may have been sent before the time is over."""
        return bool(self.trace) or self.requests < sys.maxsize


class Size(NamedTuple):
    """Lengths of a request, and when it is sent."""

    at: float
    prompt_tokens: int
    output_tokens: int


async def make(workload: Workload, count: Count) -> list[Ask]:
    sizes = sizes_of(workload)
    texts = await prompts_of(workload, [size.prompt_tokens for size in sizes], count)
    rows = zip(sizes, texts, cycle(workload.adapters or ("",)), strict=False)
    return [Ask(number, text.prompt, text.output_tokens or size.output_tokens, text.prompt_tokens, adapter,
                size.at if workload.is_open else None) for number, (size, text, adapter) in enumerate(rows)]


def sizes_of(workload: Workload) -> list[Size]:
    """Return times and lengths of all requests. Raises ValueError if the settings allow none."""
    random = Random(workload.seed)
    moments = read_trace(Path(workload.trace)) if workload.trace else []
    times = list(islice(takewhile(lambda at: at < workload.seconds,
                                  times_of(workload, moments, Random(f"when {workload.seed}"))), workload.requests))
    pairs = list(islice(lengths_of(workload, moments, random), len(times)))
    if workload.descend:
        pairs.sort(key=lambda pair: pair[1], reverse=True)
    least = min((prompt for prompt, _ in pairs), default=sys.maxsize)
    if workload.shared_prefix >= least:
        raise ValueError(f"--shared-prefix {workload.shared_prefix} is part of --prompt-tokens, and leaves nothing of "
                         f"a prompt of {least} tokens")
    return [Size(at, prompt, output) for at, (prompt, output) in zip(times, pairs, strict=True)]


def lengths_of(workload: Workload, moments: Sequence[Moment], random: Random) -> Iterator[tuple[int, int]]:
    if moments:
        return ((moment.prompt_tokens, moment.output_tokens) for moment in moments)
    prompt = lengths(workload.prompt_tokens, "--prompt-tokens")
    output = lengths(workload.output_tokens, "--output-tokens")
    return ((prompt(random), output(random)) for _ in repeat(None))


def times_of(workload: Workload, moments: Sequence[Moment], random: Random) -> Iterator[float]:
    if moments:
        return (moment.at / workload.speed for moment in moments)
    if workload.wait is not None:
        return waits(workload.wait, random)
    if not workload.rate:
        return repeat(0.0)
    if workload.even:
        return evenly(workload.rate)
    return bursts(workload.rate, workload.burst, random) if workload.burst > 1 else poisson(workload.rate, random)


class Text(NamedTuple):
    prompt: str
    prompt_tokens: int | None = None
    output_tokens: int | None = None  # if the file of prompts gives it


async def prompts_of(workload: Workload, sizes: Sequence[int], count: Count) -> list[Text]:
    if workload.only:
        return [Text(workload.only)] * len(sizes)
    if workload.prompts:
        found = cycle(read_prompts(Path(workload.prompts)))
        return [Text(prompt, None, own) for prompt, own in islice(found, len(sizes))]
    if workload.numbered:
        return [Text(f"Request {number}") for number in range(len(sizes))]
    return await made(workload, sizes, count)


async def made(workload: Workload, sizes: Sequence[int], count: Count) -> list[Text]:
    """Make prompts of these sizes. Each has its own seed, so the order in which they finish does not matter."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(head: str, size: int) -> Text:
        async with places:
            text = await fit(head, size, count, Random(f"{workload.seed} {head}"))
            return Text(text, await count(text))
    prefixes = [""]
    if workload.shared_prefix:
        prefixes = [(await one(f"{letter_of(number)}{workload.salt}", workload.shared_prefix)).prompt
                    for number in range(workload.prefixes)]
    heads = (f"{prefix} {workload.salt}{number}".strip() for number, prefix in enumerate(cycle(prefixes)))
    return await asyncio.gather(*(one(head, size) for head, size in zip(heads, sizes, strict=False)))


def letter_of(number: int) -> str:
    return chr(ord("A") + number % 26) * (1 + number // 26)
