"""Requests and their times: the three workloads of the effective-batching study, and weft's own for rates and users.

The same seed gives the same requests. `speedup` divides all times, so that a server that is faster than the study's
gets an equally heavy load.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from statistics import fmean

from benchmarks.bench.load import arrivals
from benchmarks.bench.load.request_records import PlannedRequest

FIGURE_OUTPUT_LENGTHS = tuple(range(5, 150, 5))
HEAD_OUTPUT_LENGTHS = 1, 25, 100
README_MEAN, README_DEVIATION, README_MAX = 100, 50, 200  # the study only specifies "normal, from 1 to 200"
BURST_SIZE = 5
LOAD_OUTPUT_LENGTHS = tuple(range(8, 65, 8))  # of answers under load, beyond the study's
PROMPT_LETTERS = "abcdefghijklmnopqrstuvwxyz    "
SOLO_OUTPUT_LENGTHS = 1, 25, 50, 100, 150, 200
STUDY_WORKLOADS = "figure", "readme", "head"


def iter_burst_workload(random: Random) -> Iterator[tuple[float, int]]:
    """Yield the pause before each request, and its tokens: every length ten times, shuffled, in bursts of five."""
    lengths = [length for length in FIGURE_OUTPUT_LENGTHS for _ in range(10)]
    random.shuffle(lengths)
    for number, length in enumerate(lengths):
        yield (random.uniform(0, 5) if number and number % BURST_SIZE == 0 else 0.0), length


def iter_normal_lengths_workload(random: Random) -> Iterator[tuple[float, int]]:
    """Yield the pause before each request, a second on average, and its tokens."""
    while True:
        length = round(random.gauss(README_MEAN, README_DEVIATION))
        yield random.uniform(0, 2), min(max(length, 1), README_MAX)


def iter_three_lengths_workload(random: Random) -> Iterator[tuple[float, int]]:
    """Yield the pause before each request, and its tokens, as the study's client does by default."""
    while True:
        yield random.uniform(0, 1), random.choice(HEAD_OUTPUT_LENGTHS)


WORKLOAD_GENERATORS = {"figure": iter_burst_workload, "readme": iter_normal_lengths_workload,
                       "head": iter_three_lengths_workload}


def make_study_requests(name: str, seed: int, num_requests: int, speedup: float) -> list[PlannedRequest]:
    bench_requests: list[PlannedRequest] = []
    send_time, pauses_and_lengths = 0.0, WORKLOAD_GENERATORS[name](Random(seed))
    for number, (pause, length) in zip(range(num_requests), pauses_and_lengths, strict=False):
        send_time += pause / speedup
        bench_requests.append(PlannedRequest(number, f"Request {number}", length, at=send_time))
    return bench_requests


def make_poisson_requests(seed: int, num_requests: int, rate: float, prompt_length: int) -> list[PlannedRequest]:
    """Return requests for an open loop with `rate` arrivals per second."""
    send_times = arrivals.iter_poisson_times(rate, Random(seed))
    requests = make_closed_loop_requests(seed, num_requests, prompt_length)
    return [replace(request, at=at) for request, at in zip(requests, send_times, strict=False)]


def make_closed_loop_requests(seed: int, num_requests: int, prompt_length: int) -> list[PlannedRequest]:
    """Return requests for a closed loop, with random prompts of `prompt_length` letters.

    All lengths are equally frequent, so that seeds differ in order and not in work."""
    random = Random(seed)
    lengths = [LOAD_OUTPUT_LENGTHS[number % len(LOAD_OUTPUT_LENGTHS)] for number in range(num_requests)]
    random.shuffle(lengths)
    return [PlannedRequest(number, make_random_prompt(random, prompt_length), length)
            for number, length in enumerate(lengths)]


def make_equal_length_requests(num_requests: int) -> list[PlannedRequest]:
    """Return requests of equal length, the mean of FIGURE_OUTPUT_LENGTHS, so that those that start together end
    together."""
    return [PlannedRequest(number, f"Request {number}", round(fmean(FIGURE_OUTPUT_LENGTHS)))
            for number in range(num_requests)]


def make_random_prompt(random: Random, prompt_length: int) -> str:
    return "".join(random.choices(PROMPT_LETTERS, k=prompt_length))


def make_solo_requests(prompt_kind: str, repeat: int, prompt_length: int) -> list[PlannedRequest]:
    """Return requests to be sent one after the other, to measure the latency of single requests."""
    if prompt_kind == "long":
        random = Random(0)
        return [PlannedRequest(number, make_random_prompt(random, prompt_length), length)
                for number, length in enumerate(LOAD_OUTPUT_LENGTHS * repeat)]
    return [PlannedRequest(number, f"Request {number}", length)
            for number, length in enumerate(SOLO_OUTPUT_LENGTHS * repeat)]

