"""Cost of a decode step beyond its matmuls: the whole step against the model's own packed matmuls and head alone.

Both run in turns on the same random weights in a real shape, with the same number of rows.
`python -P -m benchmarks.questions.decode_step --help` lists the settings. The last line is JSON.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
import torch
from cyclopts import Parameter
from cyclopts.validators import Number
from torch import Tensor

from benchmarks.harness.checkpoints import SHAPES, make
from benchmarks.harness.random_state import blocks_of, drawn_cache, drawn_sequence, timed
from benchmarks.harness.results import as_line, save, tell
from shard.attention.kv_cache import Cache
from shard.config import ShardConfig
from shard.runner.cuda_graphs import Extent
from shard.state.transaction import Step
from shard.workers.load_decoder import Loaded, load

GOALS = {1: 0.80, 8: 0.75, 16: 0.68, 32: 0.62}  # share of matmuls by batch size, for qwen2.5-0.5b at context 256


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    shape: Literal[tuple(SHAPES)] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # a computed Literal
    "Which model's sizes."
    batch: Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1))] = (1, 8, 16, 32)
    "How many sequences decode; one point for each number."
    context: Annotated[int, Parameter(validator=Number(gte=1))] = 256
    "Tokens of each sequence."
    repeat: Annotated[int, Parameter(validator=Number(gte=1))] = 15
    "How often step and products take turns; the figures are medians."
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    "Number type, as in `weft serve`."
    device: Literal["auto", "cpu", "cuda"] = "auto"
    "Where, as in `weft serve`."
    cuda_graphs: Annotated[bool, Parameter(negative="--no-cuda-graphs")] = True
    "Whether steps are replayed, as in `weft serve`."
    exact: bool = False
    "Whether bits may not depend on company, as in `weft serve`."
    threads: int = 0
    "Threads; 0: as `weft serve` takes them."
    folder: str = ""
    "Where the random model is kept for the next time; by default it is made anew and thrown away."
    save: bool = False
    "Keep what is printed under benchmarks/results."
    profile: bool = False
    "Print the operations of a step at each batch by the time they take; kept beside the figures with --save."


@dataclass(frozen=True, slots=True)
class Point:
    batch: int
    step_ms: float
    products_ms: float
    share: float  # time of the matmuls alone / time of the step, the median of the turns
    least_share: float
    most_share: float
    operations: str = ""  # the profile, if requested


def measure(loaded: Loaded, settings: Settings, batch: int) -> Point:
    cache, step = prepared(loaded, batch, settings.context)
    loaded.runner.replay(loaded.replays(cache, Extent(batch, settings.context)))
    products = products_of(loaded, batch)

    def whole() -> None:
        loaded.runner.run(step, cache)

    turns = [(timed(whole), timed(products)) for _ in range(settings.repeat + 2)][2:]
    shares = [alone / step_time for step_time, alone in turns]
    step_ms, products_ms = (1e3 * statistics.median(column) for column in zip(*turns, strict=True))
    operations = profile(whole, batch) if settings.profile else ""
    return Point(batch, step_ms, products_ms, statistics.median(shares), min(shares), max(shares), operations)


def prepared(loaded: Loaded, batch: int, context: int) -> tuple[Cache, Step]:
    """Return a random cache, and a step of greedy sequences that are each about to compute their last token."""
    each, vocabulary = blocks_of(context), loaded.config.vocabulary_size
    rows = [drawn_sequence(number, context, context - 1, vocabulary, each) for number in range(batch)]
    return drawn_cache(loaded, batch * each), Step(decodes=rows)


def products_of(loaded: Loaded, batch: int) -> Callable[[], None]:
    """Return a function that runs the matmuls of a step one after the other, on the same rows every time."""
    model = loaded.model
    products = model.products
    rows = max(batch, 2)  # as in a step, which computes a single row as two
    inputs: dict[int, Tensor] = {}
    for width in {width for _, width in products} | {model.config.hidden_size}:
        inputs[width] = torch.randn(rows, width, dtype=loaded.dtype, device=loaded.device)

    @torch.inference_mode()
    def run() -> None:
        for linear, width in products:
            linear(inputs[width])
        model.logits(inputs[model.config.hidden_size][:batch])

    return run


def profile(run: Callable[[], None], batch: int) -> str:
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            run()
    table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50)
    return f"batch {batch}, three steps\n{table}"


COLUMNS = (("batch", "{0.batch}"), ("step ms", "{0.step_ms:.2f}"), ("products ms", "{0.products_ms:.2f}"),
           ("share %", "{1:.1f}"), ("least", "{2:.1f}"), ("most", "{3:.1f}"), ("tokens/s", "{4:.0f}"))


def line(point: Point) -> str:
    figures = (100 * point.share, 100 * point.least_share, 100 * point.most_share, 1e3 * point.batch / point.step_ms)
    return " ".join(f"{form.format(point, *figures):>12}" for _, form in COLUMNS)


def table(points: Sequence[Point]) -> str:
    return "\n".join([" ".join(f"{name:>12}" for name, _ in COLUMNS), *map(line, points)])


def summary(settings: Settings, loaded: Loaded, points: Sequence[Point]) -> dict[str, Any]:
    return {
        "shape": settings.shape, "context": settings.context, "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": loaded.device.type, "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(), "exact": not loaded.inexact,
        "exact_demanded": settings.exact, "repeat": settings.repeat,
        "goals": GOALS if settings.shape == "qwen2.5-0.5b" else {}, "points": [
            {name: round(value, 4) for name, value in asdict(one).items() if name != "operations"} for one in points]}


def bench(settings: Settings = Settings()) -> None:
    """Measure decode steps in milliseconds, and the share that their matmuls take alone."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = make(settings.shape, Path(settings.folder or temporary) / settings.shape)
        loaded = load(ShardConfig(model=str(folder), dtype=settings.dtype, device=settings.device,
                                  cuda_graphs=settings.cuda_graphs, exact=settings.exact, threads=settings.threads))
        points = [measure(loaded, settings, batch) for batch in settings.batch]
    title = f"{settings.shape} step{' exact' * settings.exact}"
    operations = "\n".join(point.operations for point in points)
    if settings.profile:
        print(operations, file=sys.stderr)
    tell(title, table(points), summary(settings, loaded, points), keep=settings.save)
    if settings.save and settings.profile:
        save(f"{title} profile", f"{operations}\n{as_line({})}\n")


def main() -> None:
    try:
        cyclopts.run(bench)
    except (ValueError, OSError) as error:
        raise SystemExit(f"benchmarks.questions.decode_step: {error}") from None


if __name__ == "__main__":
    main()
