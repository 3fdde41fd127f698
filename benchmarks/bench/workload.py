"""What is asked in a run, in order: prompts, lengths, adapters and, where nobody waits for answers, moments.

The same settings and seed give the same asks. Knows no server but for who counts tokens.
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

from benchmarks.bench.arrivals import Moment, bursts, evenly, poisson, read_trace, waits
from benchmarks.bench.lengths import lengths
from benchmarks.bench.prompts import Count, fit, read_prompts
from benchmarks.bench.record import Ask

AT_ONCE = 16  # prompts that are made and counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    requests: int = sys.maxsize  # the most; a trace or `seconds` may end earlier
    seconds: float = inf  # in which they are sent, where they do not wait for each other
    rate: float = 0.0  # requests a second; 0 where they wait for each other
    burst: int = 1
    even: bool = False
    wait: float | None = None  # the longest pause between two, as the study's client makes them
    trace: str = ""
    speed: float = 1.0  # of a trace
    prompt_tokens: str = "64"
    output_tokens: str = "64"
    prompts: str = ""
    shared_prefix: int = 0
    prefixes: int = 1
    adapters: tuple[str, ...] = ()
    descend: bool = False
    numbered: bool = False  # "Request 7", as the study's client asks
    only: str = ""  # the one prompt there is
    seed: int = 0
    salt: str = ""  # other prompts of the same lengths at the same moments

    @property
    def is_open(self) -> bool:
        """Whether requests are sent whatever became of those before."""
        return bool(self.rate or self.trace or self.wait is not None)

    @property
    def is_salted(self) -> bool:
        """Whether another salt makes other prompts."""
        return not (self.only or self.prompts or self.numbered)

    @property
    def is_limited(self) -> bool:
        """Whether there may be nothing left to ask before the time is over."""
        return bool(self.trace) or self.requests < sys.maxsize


class Size(NamedTuple):
    """Of a request, and when it is sent."""

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
    """Raises ValueError if they cannot be."""
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
    output_tokens: int | None = None  # where it says how long its answer should be


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
    """Each has words of its own, whichever is made first."""
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
