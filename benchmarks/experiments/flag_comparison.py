"""Comparison of settings with their defaults: throughput and latencies at several numbers of streams.

One server is started for each variant, as users start it, on a random model in a real shape; all stay up, since idle
servers cost nothing. They are loaded one after the other, in another order each round, by clients that send their next
request at once. `python -P -m benchmarks.experiments.flag_comparison --help` lists the settings. The last line is
JSON.
"""

import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Annotated, Any

import uvloop
from cyclopts import Parameter

from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import Target, raise_first_failure, run_load
from benchmarks.bench.load.prompts import make_local_token_counter
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.bench.load.workload import WorkloadSettings, make_requests
from benchmarks.bench.report.summary import RunSummary, summarize_run
from benchmarks.harness import experiment
from benchmarks.harness.processes import MAX_ANSWER_SECONDS, run_weft_serve
from benchmarks.harness.reporting import report_results

DEFAULT = ""  # the variant without flags
COMMON_FLAGS = "--compat", "lorax"  # its API has `ignore_eos_token`: a random model may end its answers early
CACHE_FRACTION = 0.05  # of memory, for each server
MAX_REQUESTS_PER_STREAM = 64  # more than a client sends in a round
NUM_WARM_UP_TOKENS = 8
FIGURES = "tokens_per_second", "first_token_p50", "first_token_p99", "gap_p99"


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class FlagComparisonSettings(experiment.RandomModelSettings):
    variants: Annotated[tuple[str, ...], Parameter(consume_multiple=True, allow_leading_hyphen=True)] = (
        "--max-decode-stall-ms 50", "--max-decode-stall-ms 500", "--max-decode-stall-ms 1000",
        "--max-decode-stall-ms 2000")
    "Flags of weft serve that are compared with the default, one string for each variant."
    serve: Annotated[str, Parameter(allow_leading_hyphen=True)] = ""
    "Flags of weft serve for all variants."
    streams: experiment.PositiveInts = (4, 16, 32)
    "Numbers of concurrent clients; one table for each."
    prompt_tokens: str = "128"
    "Prompt lengths, as in weft bench."
    output_tokens: str = "128"
    "Output lengths, as in weft bench."
    seconds: experiment.PositiveFloat = 45.0
    "Seconds for which each variant is loaded in a round. Answers that have begun then are awaited, but not measured."
    rounds: experiment.PositiveInt = 3
    "Number of measurements of each variant."


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """Figures of one variant in one round; times in seconds."""

    tokens_per_second: float
    first_token_p50: float
    first_token_p99: float
    gap_p99: float

    @classmethod
    def from_summary(cls, summary: RunSummary) -> "RoundMetrics":
        return cls(summary.tokens_per_second, summary.first_token.p50, summary.first_token.p99,
                   summary.between_tokens.p99)


@dataclass(frozen=True, slots=True)
class VariantRounds:
    """Figures of one variant at one number of streams, round by round, beside those of the default."""

    variant: str
    rounds: Sequence[RoundMetrics]
    default_rounds: Sequence[RoundMetrics]

    def median(self, figure: str) -> float:
        values: list[float] = [getattr(one, figure) for one in self.rounds]
        return statistics.median(values)

    def default_ratio(self, figure: str) -> float:
        """Return the median over the rounds of the default's figure divided by the variant's."""
        ratios: list[float] = [getattr(default, figure) / getattr(own, figure)
                               for default, own in zip(self.default_rounds, self.rounds, strict=True)]
        return statistics.median(ratios)

    def to_json(self) -> dict[str, Any]:
        return {"variant": self.variant, **{name: round(self.median(name), 4) for name in FIGURES},
                "default_ratio": {name: round(self.default_ratio(name), 4) for name in FIGURES},
                "rounds": [{name: round(value, 4) for name, value in asdict(one).items()} for one in self.rounds]}


class ServerLoad:
    """Load on servers, one after the other. No prompt is sent twice, so that no prefix is found in a cache."""

    def __init__(self, tokenizer_folder: Path, prompt_tokens: str, output_tokens: str, seconds: float) -> None:
        self._count_tokens = make_local_token_counter(str(tokenizer_folder))
        self._prompt_tokens, self._output_tokens, self._seconds = prompt_tokens, output_tokens, seconds
        self._run_numbers = count()

    async def measure(self, target: Target, num_streams: int) -> RoundMetrics:
        """Return the figures of a window. Raises ValueError if a request failed, or an answer had another length."""
        requests = await self._make_requests(num_streams, self._output_tokens)
        records = await run_load(target, requests, num_streams, seconds=self._seconds)
        raise_first_failure(records)
        raise_wrong_length(records)
        if len(records) == len(requests):
            raise ValueError(f"the clients ran out of requests: each had {MAX_REQUESTS_PER_STREAM}")
        return RoundMetrics.from_summary(summarize_run(records, (0.0, self._seconds)))

    async def warm_up(self, target: Target, num_streams: int) -> None:
        """Send every client's first request, for a short answer that is not measured."""
        requests = await self._make_requests(num_streams, str(NUM_WARM_UP_TOKENS))
        raise_first_failure(await run_load(target, requests[:num_streams], num_streams))

    async def _make_requests(self, num_streams: int, output_tokens: str) -> Sequence[PlannedRequest]:
        workload = WorkloadSettings(requests=num_streams * MAX_REQUESTS_PER_STREAM, prompt_tokens=self._prompt_tokens,
                                    output_tokens=output_tokens, salt=f"{next(self._run_numbers)} ")
        return await make_requests(workload, self._count_tokens)


def raise_wrong_length(records: Iterable[RequestRecord]) -> None:
    """Raise ValueError if an answer has other than the tokens that were asked for."""
    for record in records:
        if record.num_tokens != record.ask.output_tokens:
            raise ValueError(f"an answer has {record.num_tokens} tokens, where {record.ask.output_tokens} were "
                             f"asked for")


@contextmanager
def run_variants(settings: FlagComparisonSettings, model: Path) -> Iterator[dict[str, str]]:
    """Run a server for the default and for each variant; yield their URLs."""
    flags = (*COMMON_FLAGS, *shlex.split(settings.serve))
    with ExitStack() as stack:
        yield {variant: stack.enter_context(run_weft_serve(model, (*flags, *shlex.split(variant)), CACHE_FRACTION))
               for variant in (DEFAULT, *settings.variants)}


async def measure_streams(load: ServerLoad, urls: dict[str, str], num_streams: int, num_rounds: int,
                          random: Random) -> list[VariantRounds]:
    figures_by_variant: dict[str, list[RoundMetrics]] = {variant: [] for variant in urls}
    for _ in range(num_rounds):
        for variant in random.sample(list(urls), len(urls)):
            figures_by_variant[variant].append(await load.measure(
                Target(urls[variant], DIALECTS["lorax"], timeout=MAX_ANSWER_SECONDS), num_streams))
            print(f"{num_streams} streams, {variant or 'default'}: {figures_by_variant[variant][-1]}", flush=True)
    default_rounds = figures_by_variant[DEFAULT]
    return [VariantRounds(variant or "default", rounds, default_rounds)
            for variant, rounds in figures_by_variant.items()]


COLUMNS = (("variant", "{0.variant}"), ("tokens/s", "{1[0]:.1f}"), ("first p50", "{1[1]:.2f}"),
           ("first p99", "{1[2]:.2f}"), ("gap p99", "{1[3]:.3f}"), ("default: tokens/s", "{2[0]:.3f}"),
           ("first p50", "{2[1]:.2f}"), ("gap p99", "{2[3]:.2f}"))


def format_table(num_streams: int, variants: Sequence[VariantRounds]) -> str:
    rows = [(one, [one.median(name) for name in FIGURES], [one.default_ratio(name) for name in FIGURES])
            for one in variants]
    width = max(len(name) for name in (*(one.variant for one in variants), *(name for name, _ in COLUMNS)))
    return f"{num_streams} streams\n{experiment.format_columns(COLUMNS, rows, width)}"


def bench(settings: FlagComparisonSettings = FlagComparisonSettings()) -> None:
    """Measure tokens/s, seconds to the first token and between tokens of the default and of variants; the last columns
    are the default's figures divided by the variant's."""
    with settings.provide_model() as (model, _), run_variants(settings, model) as urls:
        load = ServerLoad(model, settings.prompt_tokens, settings.output_tokens, settings.seconds)
        random = Random(1)
        results = {num_streams: uvloop.run(measure_streams(load, urls, num_streams, settings.rounds, random))
                   for num_streams in settings.streams}
    report_results("flag comparison", "\n\n".join(format_table(*item) for item in results.items()),
                   {"shape": settings.shape, "serve": settings.serve, "seconds": settings.seconds,
                    "prompt_tokens": settings.prompt_tokens, "output_tokens": settings.output_tokens,
                    "streams": {num_streams: [one.to_json() for one in variants]
                                for num_streams, variants in results.items()}}, should_save=settings.save)


if __name__ == "__main__":
    experiment.run_experiment(bench)
