"""Accuracy of `weft bench`: its figures for a server whose shard takes a fixed time for every step.

A simulated shard logs begin and end of every step. The true time of a token is the end of the step that generated it,
the true time between tokens that between two steps. `--help` lists the settings. The last line is JSON.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from statistics import mean, median
from time import perf_counter
from typing import Annotated

import cyclopts
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.client import Target
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import drive
from benchmarks.bench.load.prompts import count_words
from benchmarks.bench.load.record import Record
from benchmarks.bench.load.workload import Workload, make
from benchmarks.bench.report.summary import summary
from benchmarks.harness.processes import HOST, SHARD, NotStarted, serving
from benchmarks.harness.results import tell
from benchmarks.harness.steal_time import MOST, Tries
from router.simulation.report import aligned

WARM_UP = 0.5


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    streams: Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1))] = (1, 8, 64)
    "How many clients ask at once; one point for each number."
    step_ms: Annotated[float, Parameter(validator=Number(gt=0))] = 200.0
    "How long a step takes."
    tokens: Annotated[int, Parameter(validator=Number(gte=2))] = 20
    "How many tokens every request asks for."
    seconds: Annotated[float, Parameter(validator=Number(gt=WARM_UP))] = 15.0
    "How long each point is measured."
    repeat: Annotated[int, Parameter(validator=Number(gte=1))] = 3
    "How often; the figures are medians."
    stolen: Annotated[float, Parameter(validator=Number(gte=0))] = MOST
    "A run is repeated if the host of a virtual machine gave more than this share of the processors to others."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(frozen=True, slots=True)
class Point:
    """Relative errors (reported / true - 1), reported figures, and absolute errors."""

    streams: int
    first_token: float
    between_tokens: float
    throughput: float
    first_token_ms: float  # as reported
    between_tokens_ms: float
    tokens_per_second: float
    first_token_off_ms: float  # reported - true
    between_tokens_off_ms: float


async def measure(port: int, streams: int, settings: Settings) -> tuple[list[Record], float]:
    """Run the load; return its records, and the `perf_counter` time at which their clock began."""
    workload = Workload(requests=4 * streams, prompt_tokens="6", output_tokens=f"{settings.tokens}")
    asks = await make(workload, count_words)
    began = perf_counter()
    target = Target(f"http://{HOST}:{port}", DIALECTS["tgi"])
    return await drive(target, cycle(asks), streams, seconds=settings.seconds), began


def compare(streams: int, records: Sequence[Record], steps: Sequence[float], began: float, seconds: float) -> Point:
    """Compare reported with true figures. `steps` holds begin and end of each step, alternating."""
    ends = [end - began for end in steps[1::2]]
    here = [end for end in ends if WARM_UP <= end < seconds]
    period = (here[-1] - here[0]) / (len(here) - 1)
    said = summary(records, (WARM_UP, seconds))
    made = [(record.sent, ends[bisect_right(ends, record.times[0]) - 1]) for record in records
            if WARM_UP <= record.sent < seconds]
    first = mean(end - sent for sent, end in made)
    tokens = records[0].num_tokens
    rate = streams * tokens / (first + (tokens - 1) * period)
    gap, rest = said.between_tokens.mean, said.first_token.mean
    return Point(streams, rest / first - 1, gap / period - 1, said.tokens_per_second / rate - 1,
                 1000 * rest, 1000 * gap, said.tokens_per_second, 1000 * (rest - first), 1000 * (gap - period))


def middle(points: Sequence[Point]) -> Point:
    first = asdict(points[0])
    return Point(**{name: median(getattr(point, name) for point in points) for name in first})


def run(settings: Settings) -> list[Point]:
    found: dict[int, list[Point]] = {streams: [] for streams in settings.streams}
    shard = {"simulated": SHARD | {"seconds_per_step": settings.step_ms / 1000}}
    for streams in [*settings.streams] * settings.repeat:
        with serving(2, shard=shard) as server:
            tries = Tries[Point](settings.stolen)
            while tries.again():
                records, began = uvloop.run(measure(server.port, streams, settings))
                tries.ended(compare(streams, records, server.step_times(), began, settings.seconds))
            found[streams].append(tries.best.heard)
    return [middle(points) for points in found.values()]


def table(points: Sequence[Point]) -> str:
    """Return a table of relative errors, errors in milliseconds, and reported figures."""
    rows = [["streams", "first token", "off by, ms", "between tokens", "off by, ms", "tokens/s", "first token, ms",
             "between, ms", "tokens/s"]]
    rows += [[f"{point.streams:.0f}", f"{point.first_token:+.2%}", f"{point.first_token_off_ms:+.2f}",
              f"{point.between_tokens:+.2%}", f"{point.between_tokens_off_ms:+.3f}", f"{point.throughput:+.2%}",
              f"{point.first_token_ms:.2f}", f"{point.between_tokens_ms:.3f}", f"{point.tokens_per_second:.1f}"]
             for point in points]
    return aligned(rows)


def truth(settings: Settings = Settings()) -> None:
    """Measure the error of `weft bench` against a shard whose steps take a fixed time."""
    points = run(settings)
    found = {"settings": asdict(settings), "points": [asdict(point) for point in points]}
    tell("truth", table(points), found, keep=settings.save)


def main() -> None:
    try:
        cyclopts.run(truth)
    except NotStarted as error:
        raise SystemExit(f"benchmarks.questions.bench_accuracy: {error}") from None


if __name__ == "__main__":
    main()
