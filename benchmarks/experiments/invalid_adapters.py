"""Latency of base-model requests while thousands of requests name invalid adapters.

Streams without an adapter decode all the time, on a random model in a real shape served by `weft serve`. The time
between two of their tokens is measured in turns: alone, and beside requests for invalid adapters. `python -P -m
benchmarks.experiments.invalid_adapters --help` lists the settings. The last line is JSON.
"""

import asyncio
import json
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, repeat
from pathlib import Path
from typing import Annotated, Any

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.arrivals import iter_even_times
from benchmarks.bench.load.dialects import DIALECTS, UNSTREAMED_TGI_DIALECT
from benchmarks.bench.load.generator import Target, run_load
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.experiments.lora_step import iter_linears
from benchmarks.harness import experiment
from benchmarks.harness.invalid_adapter_files import CONFIG_FILE, WEIGHTS_FILE, add_defect
from benchmarks.harness.processes import MAX_ANSWER_SECONDS, make_adapter_flags, run_weft_serve
from benchmarks.harness.random_checkpoints import write_random_safetensors
from benchmarks.harness.reporting import report_results
from router.simulation.run_stats import percentile

PROMPT = "weave me a picture of the sea and of the boats that sail on it"
LORA_RANK = 8
OUTPUT_TOKENS = 3000  # tokens of an answer, after which a stream sends its next request
SETTLE_SECONDS = 2.0  # seconds before the first turn, once all streams have begun
IGNORE_EOS_FLAGS = ("--compat", "lorax")  # an API with `ignore_eos_token`: a random model may end its answers early
VARYING_ERROR_TEXT = re.compile(r"'[^']*'|\S*[\d/_.]\S*")  # parts of an error that differ from file to file
ERROR_PREFIX = re.compile(r"^(\d+: )?Request failed during generation: (the adapter \S+: )?")


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidAdaptersSettings(experiment.RandomModelSettings):
    streams: experiment.PositiveInt = 8
    "Number of concurrent streams."
    requests: experiment.PositiveInt = 2000
    "Number of invalid adapters that are requested in a turn, each once."
    at_once: experiment.PositiveInt = 8
    "Maximum number of concurrent requests for invalid adapters."
    rate: experiment.NonNegativeFloat = 20.0
    "Their rate in requests per second; 0: no limit."
    threads: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    "Threads of the shard; 0: as many as weft chooses."
    seconds: experiment.PositiveFloat = 30.0
    "Seconds of a turn without them; a turn with them lasts until all are answered."
    repeat: experiment.PositiveInt = 3
    "Number of turns of each kind; the figures are medians."


@dataclass(slots=True)
class TurnResult:
    """Token gaps of the streams, and statuses and errors of the other requests."""

    token_gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0
    status_counts: Counter[int] = field(default_factory=Counter)
    error_counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class InvalidAdaptersPoint:
    """Times between tokens, throughput and refusals of one turn."""

    p50_ms: float
    p99_ms: float
    most_ms: float
    tokens_per_second: float
    refused_per_second: float


class TokenGapObserver:
    """Observer of streams that adds each time between two tokens to the measurements of the current turn."""

    def __init__(self, num_streams: int) -> None:
        self.measurements = TurnResult()
        self.all_started = asyncio.Event()  # set when every stream has received a token, or one has failed
        self._requests_without_token = set(range(num_streams))
        self._error = ""

    def on_request_sent(self, record: RequestRecord) -> None:
        """Do nothing: only tokens count."""

    def on_token(self, record: RequestRecord) -> None:
        if len(record.times) > 1:
            self.measurements.token_gaps.append(record.times[-1] - record.times[-2])
        elif not self.all_started.is_set():
            self._requests_without_token.discard(record.ask.number)
            if not self._requests_without_token:
                self.all_started.set()

    def on_request_ended(self, record: RequestRecord) -> None:
        if record.error:
            self._error = record.error
            self.all_started.set()

    def raise_failure(self) -> None:
        if self._error:
            raise ValueError(f"a stream without an adapter failed: {self._error}")


@asynccontextmanager
async def run_background_streams(base_url: str, num_streams: int) -> AsyncIterator[TokenGapObserver]:
    """Run streams that send one request after the other; the block begins when all of them have received a token."""
    observer, target = TokenGapObserver(num_streams), Target(base_url, DIALECTS["lorax"], timeout=MAX_ANSWER_SECONDS)
    requests = (PlannedRequest(number, f"{number % num_streams} {PROMPT}", OUTPUT_TOKENS) for number in count())
    load = asyncio.create_task(run_load(target, requests, num_streams, observer=observer))
    load.add_done_callback(lambda _: observer.all_started.set())
    try:
        await observer.all_started.wait()
        if load.done():  # requests never run out, so it failed
            load.result()
        observer.raise_failure()
        yield observer
        observer.raise_failure()
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)


def normalize_error(error: str, adapter_name: str) -> str:
    """Return the error without the parts that differ from file to file."""
    return re.sub(r"\.\.\.( \.\.\.)+", "...",
                  VARYING_ERROR_TEXT.sub("...", ERROR_PREFIX.sub("", error).replace(adapter_name, "...")))


async def measure_turns(settings: InvalidAdaptersSettings, adapter_names: Sequence[str],
                        base_url: str) -> list[tuple[TurnResult, TurnResult]]:
    async with run_background_streams(base_url, settings.streams) as observer:
        await asyncio.sleep(SETTLE_SECONDS)
        return [(await measure_alone(observer, settings.seconds),
                 await measure_with_invalid_adapters(observer, base_url, settings, adapter_names))
                for _ in range(settings.repeat)]


async def measure_alone(observer: TokenGapObserver, seconds: float) -> TurnResult:
    observer.measurements = measurements = TurnResult(seconds=seconds)
    await asyncio.sleep(seconds)
    return measurements


async def measure_with_invalid_adapters(observer: TokenGapObserver, base_url: str, settings: InvalidAdaptersSettings,
                                        adapter_names: Sequence[str]) -> TurnResult:
    observer.measurements = measurements = TurnResult()
    send_times = iter_even_times(settings.rate) if settings.rate else repeat(0.0)
    requests = [PlannedRequest(number, PROMPT, 1, adapter=name, at=at)
                for number, (name, at) in enumerate(zip(adapter_names, send_times, strict=False))]
    started_at = time.perf_counter()
    target = Target(base_url, UNSTREAMED_TGI_DIALECT, timeout=MAX_ANSWER_SECONDS)
    records = await run_load(target, requests, settings.at_once)
    measurements.seconds = time.perf_counter() - started_at
    for record in records:
        if not record.status:
            raise ValueError(f"a request for {record.ask.adapter} has no answer: {record.error}")
        measurements.status_counts[record.status] += 1
        if record.status != 200:
            measurements.error_counts[normalize_error(record.error, record.ask.adapter)] += 1
    return measurements


def make_point(measurements: TurnResult) -> InvalidAdaptersPoint:
    gaps = sorted(1e3 * gap for gap in measurements.token_gaps)
    if not gaps:
        raise ValueError("a turn was over before a second token came; ask for more requests, or longer turns")
    return InvalidAdaptersPoint(percentile(gaps, 50), percentile(gaps, 99), gaps[-1], len(gaps) / measurements.seconds,
                                (measurements.status_counts.total() - measurements.status_counts[200])
                                / measurements.seconds)


def compute_ratios(point_pairs: Sequence[tuple[InvalidAdaptersPoint, InvalidAdaptersPoint]],
                   figure: str) -> list[float]:
    """Return a figure beside the other requests divided by the same figure alone, for each turn."""
    return [getattr(other, figure) / getattr(first, figure) for first, other in point_pairs]


TABLE_COLUMNS = (
    ("", "{1}"), ("p50 ms", "{0.p50_ms:.1f}"), ("p99 ms", "{0.p99_ms:.1f}"), ("longest", "{0.most_ms:.1f}"),
    ("tokens/s", "{0.tokens_per_second:.0f}"), ("refused/s", "{0.refused_per_second:.0f}"))


def format_table(point_pairs: Sequence[tuple[InvalidAdaptersPoint, InvalidAdaptersPoint]]) -> str:
    return experiment.format_columns(TABLE_COLUMNS, [(one, name) for pair in point_pairs
                                          for name, one in zip(("alone", "beside"), pair, strict=True)])


def format_ratios(point_pairs: Sequence[tuple[InvalidAdaptersPoint, InvalidAdaptersPoint]]) -> str:
    ratios_by_figure = {name: compute_ratios(point_pairs, f"{name}_ms") for name in ("p50", "p99")}
    return "\n".join(f"{name} beside / alone: {', '.join(f'{one:.3f}' for one in values)}, median "
                     f"{statistics.median(values):.3f}" for name, values in ratios_by_figure.items())


def format_error_counts(error_counts: Counter[str], status_counts: Counter[int]) -> str:
    lines = [f"{count:>8} {message}" for message, count in error_counts.most_common()]
    return "\n".join(
        [f"answered: {', '.join(f'{count} with {status}' for status, count in sorted(status_counts.items()))}", *lines])


def sum_counters(counters: Iterable[Counter[Any]]) -> Counter[Any]:
    return sum(counters, Counter())


def make_summary(settings: InvalidAdaptersSettings,
                 turns: Sequence[tuple[TurnResult, TurnResult]]) -> dict[str, Any]:
    points = [(make_point(first), make_point(other)) for first, other in turns]
    status_counts = sum_counters(other.status_counts for _, other in turns)
    medians = {f"{name}_ratio": statistics.median(compute_ratios(points, f"{name}_ms")) for name in ("p50", "p99")}
    return {**{name: round(value, 4) for name, value in medians.items()},
            "refused": status_counts.total() - status_counts[200], "taken": status_counts[200],
            "reasons": dict(sum_counters(other.error_counts for _, other in turns).most_common()),
            "shape": settings.shape,
            "streams": settings.streams, "requests": settings.requests, "at_once": settings.at_once,
            "rate": settings.rate, "threads": settings.threads, "seconds": settings.seconds, "repeat": settings.repeat,
            "turns": [{"alone": asdict(first), "beside": asdict(other)} for first, other in points]}


def write_invalid_adapters(settings: InvalidAdaptersSettings, adapter_root: Path) -> list[str]:
    """Write the invalid adapters and return their names.

    Each is derived from a valid small adapter for two linears of the first layer."""
    valid_folder = adapter_root / "good"
    valid_folder.mkdir(parents=True)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, inputs, outputs in iter_linears(settings.shape):
        if ".layers.0." in name and name.endswith(("q_proj", "v_proj")):
            shapes |= {f"{name}.lora_A.weight": (LORA_RANK, inputs), f"{name}.lora_B.weight": (outputs, LORA_RANK)}
    write_random_safetensors(valid_folder / WEIGHTS_FILE, shapes)
    (valid_folder / CONFIG_FILE).write_text(json.dumps({"peft_type": "LORA", "r": LORA_RANK, "lora_alpha": LORA_RANK}))
    files = {name: (valid_folder / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}
    names = [f"spoiled-{number}" for number in range(settings.requests)]
    for number, name in enumerate(names):
        (adapter_root / name).mkdir()
        for file, content in add_defect(files, number).items():
            (adapter_root / name / file).write_bytes(content)
    return names


def bench(settings: InvalidAdaptersSettings = InvalidAdaptersSettings()) -> None:
    """Measure milliseconds between tokens of requests without adapter, alone and beside requests for invalid ones."""
    with settings.provide_model() as (model, _), tempfile.TemporaryDirectory() as temporary:
        adapter_root = Path(temporary) / "adapters"
        adapter_names = write_invalid_adapters(settings, adapter_root)
        with run_weft_serve(model, (*make_adapter_flags(adapter_root), *IGNORE_EOS_FLAGS,
                                    "--threads", str(settings.threads))) as base_url:
            turns = uvloop.run(measure_turns(settings, adapter_names, base_url))
    points = [(make_point(first), make_point(other)) for first, other in turns]
    error_counts, status_counts = sum_counters(other.error_counts for _, other in turns), sum_counters(
        other.status_counts for _, other in turns)
    text = "\n".join([format_table(points), format_ratios(points), format_error_counts(error_counts, status_counts)])
    report_results(f"{settings.shape} mutated adapters", text, make_summary(settings, turns), should_save=settings.save)


if __name__ == "__main__":
    experiment.run_experiment(bench)
