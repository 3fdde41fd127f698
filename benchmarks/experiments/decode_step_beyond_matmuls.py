"""Cost of a decode step beyond its matmuls: the whole step against the model's own packed matmuls and head alone.

Both run in turns on the same random weights in a real shape, with the same number of rows.
`python -P -m benchmarks.experiments.decode_step_beyond_matmuls --help` lists the settings. The last line is JSON.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import torch
from cyclopts import Parameter
from torch import Tensor

from benchmarks.harness import experiment
from benchmarks.harness.gpu_timing import measure_seconds
from benchmarks.harness.random_checkpoints import MODEL_CONFIGS
from benchmarks.harness.random_step_inputs import make_random_cache, make_random_sequence, num_blocks_for
from benchmarks.harness.reporting import format_json_line, report_results, save_report
from shard.attention.kv_cache import KVCache
from shard.config import ShardConfig
from shard.state.step import MIN_ROWS, Step
from shard.workers.model_loading import LoadedDecoder, load_decoder_model

# share of matmuls by batch size, for qwen2.5-0.5b at context 256
MATMUL_SHARE_GOALS = {1: 0.80, 8: 0.75, 16: 0.68, 32: 0.62}


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStepSettings(experiment.RandomModelSettings):
    shape: Literal[tuple(MODEL_CONFIGS)] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # a computed Literal
    "Shape of the random model."
    batch: experiment.PositiveInts = (1, 8, 16, 32)
    "Batch sizes; one row for each."
    context: experiment.PositiveInt = 256
    "Context length in tokens."
    repeat: experiment.PositiveInt = 15
    "Measurements of steps and products, in turn; the figures are medians."
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    "Number type of weights and computation, as in `weft serve`."
    device: Literal["auto", "cpu", "cuda"] = "auto"
    "Device of the model, as in `weft serve`."
    cuda_graphs: Annotated[bool, Parameter(negative="--no-cuda-graphs")] = True
    "Replay steps as CUDA graphs, as in `weft serve`."
    exact: bool = False
    "Compute each row with the same bits in every batch, as in `weft serve`."
    threads: int = 0
    "Threads on CPU; 0: as many as `weft serve` uses."
    profile: bool = False
    "Print the time of each operation of a step for each batch size; saved with --save."


@dataclass(frozen=True, slots=True)
class DecodeStepPoint:
    """Milliseconds of a decode step and of its matmuls alone, at one batch size."""

    batch: int
    step_ms: float
    products_ms: float
    share: float  # time of the matmuls alone / time of the step, the median of the turns
    least_share: float
    most_share: float
    operations: str = ""  # the profile, if requested


def measure(loaded_model: LoadedDecoder, settings: DecodeStepSettings, batch: int) -> DecodeStepPoint:
    cache, step = prepare_decode_step(loaded_model, batch, settings.context)
    loaded_model.runner.cuda_graph_runner = loaded_model.capture_decode_steps(cache, batch, settings.context)
    run_matmuls = make_matmul_runner(loaded_model, batch)

    def run_step() -> None:
        loaded_model.runner.run(step, cache)

    step_and_matmul_seconds = [(measure_seconds(run_step), measure_seconds(run_matmuls))
                               for _ in range(settings.repeat + 2)][2:]
    shares = [matmul_time / step_time for step_time, matmul_time in step_and_matmul_seconds]
    step_ms, products_ms = (1e3 * statistics.median(column) for column in zip(*step_and_matmul_seconds, strict=True))
    operations = profile_steps(run_step, batch) if settings.profile else ""
    return DecodeStepPoint(batch, step_ms, products_ms, statistics.median(shares), min(shares), max(shares), operations)


def prepare_decode_step(loaded_model: LoadedDecoder, batch_size: int, context_length: int) -> tuple[KVCache, Step]:
    """Return a random cache, and a step of greedy sequences that are each about to compute their last token."""
    blocks_per_sequence, vocabulary_size = num_blocks_for(context_length), loaded_model.config.vocabulary_size
    sequences = [make_random_sequence(number, context_length, context_length - 1, vocabulary_size, blocks_per_sequence)
                 for number in range(batch_size)]
    return make_random_cache(loaded_model, batch_size * blocks_per_sequence), Step(decodes=sequences)


def make_matmul_runner(loaded_model: LoadedDecoder, batch_size: int) -> Callable[[], None]:
    """Return a function that runs the matmuls of a step one after the other, on the same rows every time."""
    model = loaded_model.model
    products = [product for linears in model.layer_linears for product in linears]
    num_rows = max(batch_size, MIN_ROWS)  # as in a step
    inputs_by_width: dict[int, Tensor] = {}
    for width in {width for _, width in products} | {model.config.hidden_size}:
        inputs_by_width[width] = torch.randn(num_rows, width, dtype=loaded_model.dtype, device=loaded_model.device)

    @torch.inference_mode()
    def run_matmuls() -> None:
        for linear, width in products:
            linear(inputs_by_width[width])
        model.compute_logits(inputs_by_width[model.config.hidden_size][:batch_size])

    return run_matmuls


def profile_steps(run_step: Callable[[], None], batch: int) -> str:
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            run_step()
    table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50)
    return f"batch {batch}, three steps\n{table}"


TABLE_COLUMNS = (("batch", "{0.batch}"), ("step ms", "{0.step_ms:.2f}"), ("products ms", "{0.products_ms:.2f}"),
                 ("share %", "{1:.1f}"), ("least", "{2:.1f}"), ("most", "{3:.1f}"), ("tokens/s", "{4:.0f}"))


def format_table(points: Sequence[DecodeStepPoint]) -> str:
    return experiment.format_columns(TABLE_COLUMNS, [(one, 100 * one.share, 100 * one.least_share, 100 * one.most_share,
                                           1e3 * one.batch / one.step_ms) for one in points], width=12)


def make_summary(settings: DecodeStepSettings, loaded_model: LoadedDecoder,
                 points: Sequence[DecodeStepPoint]) -> dict[str, Any]:
    return {
        "shape": settings.shape, "context": settings.context, "dtype": str(loaded_model.dtype).removeprefix("torch."),
        "device": loaded_model.device.type, "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(), "exact": not loaded_model.inexact_reason,
        "exact_demanded": settings.exact, "repeat": settings.repeat,
        "goals": MATMUL_SHARE_GOALS if settings.shape == "qwen2.5-0.5b" else {}, "points": [
            {name: round(value, 4) for name, value in asdict(one).items() if name != "operations"} for one in points]}


def bench(settings: DecodeStepSettings = DecodeStepSettings()) -> None:
    """Measure decode steps in milliseconds, and the share that their matmuls take alone."""
    with settings.provide_model() as (folder, _):
        loaded_model = load_decoder_model(ShardConfig(model=str(folder), dtype=settings.dtype, device=settings.device,
                                                      cuda_graphs=settings.cuda_graphs, exact=settings.exact,
                                                      threads=settings.threads))
        points = [measure(loaded_model, settings, batch) for batch in settings.batch]
    title = f"{settings.shape} step{' exact' * settings.exact}"
    operations = "\n".join(point.operations for point in points)
    if settings.profile:
        print(operations, file=sys.stderr)
    report_results(title, format_table(points), make_summary(settings, loaded_model, points), should_save=settings.save)
    if settings.save and settings.profile:
        save_report(f"{title} profile", f"{operations}\n{format_json_line({})}\n")


if __name__ == "__main__":
    experiment.run_experiment(bench)
