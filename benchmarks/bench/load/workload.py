"""Requests of a run, in order: prompts, lengths, adapters and, in an open loop, times.

The same settings and seed give the same requests, provided that tokens are counted in the same way.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, repeat, takewhile
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.bench.load.arrivals import (
    TraceRequest,
    iter_burst_times,
    iter_even_times,
    iter_poisson_times,
    iter_times_with_uniform_pauses,
    load_trace,
)
from benchmarks.bench.load.prompts import TokenCounter, load_prompts, make_prompt_of_length
from benchmarks.bench.load.request_records import PlannedRequest

MAX_CONCURRENT_PROMPTS = 16  # prompts that are made and counted concurrently
LengthSampler = Callable[[Random], int]
LENGTH_SYNTAX = "64, 16-128, 1,25,100 or normal:MEAN:DEVIATION"
NUMBER_PATTERN = r"(\d+\.?\d*|\.\d+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """Settings from which the requests of a run are made."""

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
    longest_first: bool = False
    has_numbered_prompts: bool = False  # prompts are "Request 7", as in the study's client
    only_prompt: str = ""  # the only prompt
    seed: int = 0
    salt: str = ""  # changes the prompts, but neither their lengths nor their times

    @property
    def is_open_loop(self) -> bool:
        """Whether requests are sent without waiting for earlier ones (open loop)."""
        return bool(self.rate or self.trace or self.wait is not None)

    @property
    def depends_on_salt(self) -> bool:
        """Whether a different salt gives different prompts."""
        return not (self.only_prompt or self.prompts or self.has_numbered_prompts)

    @property
    def can_run_out(self) -> bool:
        """Whether all requests may have been sent before the time is over."""
        return bool(self.trace) or self.requests < sys.maxsize


class RequestSpec(NamedTuple):
    """Lengths of a request, and when it is sent."""

    at: float
    prompt_tokens: int
    output_tokens: int


async def make_requests(workload: WorkloadSettings, count_tokens: TokenCounter) -> list[PlannedRequest]:
    sizes = draw_request_specs(workload)
    prompts = await make_prompts(workload, [size.prompt_tokens for size in sizes], count_tokens)
    rows = zip(sizes, prompts, cycle(workload.adapters or ("",)), strict=False)
    return [PlannedRequest(number, text.prompt, text.output_tokens or size.output_tokens, text.prompt_tokens, adapter,
                           size.at if workload.is_open_loop else None)
            for number, (size, text, adapter) in enumerate(rows)]


def draw_request_specs(workload: WorkloadSettings) -> list[RequestSpec]:
    """Return times and lengths of all requests. Raises ValueError if the settings allow none."""
    random = Random(workload.seed)
    trace_requests = load_trace(Path(workload.trace)) if workload.trace else []
    times = list(islice(takewhile(lambda at: at < workload.seconds,
                                  draw_send_times(workload, trace_requests, Random(f"when {workload.seed}"))),
                        workload.requests))
    length_pairs = list(islice(draw_lengths(workload, trace_requests, random), len(times)))
    if workload.longest_first:
        length_pairs.sort(key=lambda pair: pair[1], reverse=True)
    shortest_prompt = min((prompt for prompt, _ in length_pairs), default=sys.maxsize)
    if workload.shared_prefix >= shortest_prompt:
        raise ValueError(f"--shared-prefix {workload.shared_prefix} is part of --prompt-tokens, and leaves nothing of "
                         f"a prompt of {shortest_prompt} tokens")
    return [RequestSpec(at, prompt, output) for at, (prompt, output) in zip(times, length_pairs, strict=True)]


def draw_lengths(workload: WorkloadSettings, trace_requests: Sequence[TraceRequest],
                 random: Random) -> Iterator[tuple[int, int]]:
    if trace_requests:
        return ((request.prompt_tokens, request.output_tokens) for request in trace_requests)
    prompt = parse_length_distribution(workload.prompt_tokens, "--prompt-tokens")
    output = parse_length_distribution(workload.output_tokens, "--output-tokens")
    return ((prompt(random), output(random)) for _ in repeat(None))


def draw_send_times(workload: WorkloadSettings, trace_requests: Sequence[TraceRequest],
                    random: Random) -> Iterator[float]:
    if trace_requests:
        return (request.at / workload.speed for request in trace_requests)
    if workload.wait is not None:
        return iter_times_with_uniform_pauses(workload.wait, random)
    if not workload.rate:
        return repeat(0.0)
    if workload.even:
        return iter_even_times(workload.rate)
    return iter_burst_times(workload.rate, workload.burst,
                            random) if workload.burst > 1 else iter_poisson_times(workload.rate, random)


class SizedPrompt(NamedTuple):
    """A prompt, with its number of tokens and the answer's, as far as they are known."""

    prompt: str
    prompt_tokens: int | None = None
    output_tokens: int | None = None  # if the file of prompts gives it


async def make_prompts(workload: WorkloadSettings, prompt_lengths: Sequence[int],
                       count_tokens: TokenCounter) -> list[SizedPrompt]:
    if workload.only_prompt:
        return [SizedPrompt(workload.only_prompt)] * len(prompt_lengths)
    if workload.prompts:
        file_prompts = cycle(load_prompts(Path(workload.prompts)))
        return [SizedPrompt(prompt, None, output_tokens)
                for prompt, output_tokens in islice(file_prompts, len(prompt_lengths))]
    if workload.has_numbered_prompts:
        return [SizedPrompt(f"Request {number}") for number in range(len(prompt_lengths))]
    return await generate_prompts(workload, prompt_lengths, count_tokens)


async def generate_prompts(workload: WorkloadSettings, prompt_lengths: Sequence[int],
                           count_tokens: TokenCounter) -> list[SizedPrompt]:
    """Make prompts of these sizes. Each has its own seed, so the order in which they finish does not matter."""
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_PROMPTS)

    async def generate_one(prefix: str, num_tokens: int) -> SizedPrompt:
        async with semaphore:
            text = await make_prompt_of_length(prefix, num_tokens, count_tokens, Random(f"{workload.seed} {prefix}"))
            return SizedPrompt(text, await count_tokens(text))
    prefixes = [""]
    if workload.shared_prefix:
        prefixes = [(await generate_one(f"{make_prefix_label(number)}{workload.salt}", workload.shared_prefix)).prompt
                    for number in range(workload.prefixes)]
    heads = (f"{prefix} {workload.salt}{number}".strip() for number, prefix in enumerate(cycle(prefixes)))
    return await asyncio.gather(*(generate_one(head, size) for head, size in zip(heads, prompt_lengths, strict=False)))


def make_prefix_label(number: int) -> str:
    return chr(ord("A") + number % 26) * (1 + number // 26)


# -- distributions of lengths: `64`, `16-128` (uniform), `1,25,100` (one of them), `normal:100:30` (mean:deviation)

def parse_length_distribution(text: str, flag: str) -> LengthSampler:
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        return make_uniform_sampler(int(match[1]), int(match[2]), flag)
    if match := re.fullmatch(f"normal:{NUMBER_PATTERN}:{NUMBER_PATTERN}", text):
        return make_normal_sampler(float(match[1]), float(match[2]))
    if re.fullmatch(r"\d+(,\d+)*", text):
        return make_choice_sampler([int(word) for word in text.split(",")], flag)
    raise ValueError(f"{flag} is {LENGTH_SYNTAX}, got {text!r}")


def make_uniform_sampler(minimum: int, maximum: int, flag: str) -> LengthSampler:
    if not 1 <= minimum <= maximum:
        raise ValueError(f"{flag} begins with 1 or more and rises, got {minimum}-{maximum}")
    return lambda random: random.randint(minimum, maximum)


def make_choice_sampler(choices: list[int], flag: str) -> LengthSampler:
    if min(choices) < 1:
        raise ValueError(f"{flag}: a length is at least 1, got {min(choices)}")
    return lambda random: random.choice(choices)


def make_normal_sampler(mean: float, deviation: float) -> LengthSampler:
    return lambda random: max(1, round(random.gauss(mean, deviation)))
