"""Cost of adapters in a decode step: steps whose rows use no, one or several adapters, in turns on one model.

Model and adapters have random weights in a real shape; the adapters change every linear of every layer.
`python -P -m benchmarks.experiments.lora_step --help` lists the settings. The last line is JSON.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.experiments.decode_step_beyond_matmuls import prepare_decode_step
from benchmarks.harness import experiment
from benchmarks.harness.gpu_timing import measure_seconds
from benchmarks.harness.random_checkpoints import MODEL_CONFIGS, iter_tensor_shapes, write_random_safetensors
from benchmarks.harness.reporting import report_results
from shard.config import ShardConfig
from shard.state.step import Step
from shard.workers.model_loading import LoadedDecoder, load_decoder_model

# Highest cost in percent of the throughput, by number of adapters: 16 streams, rank 16, shape qwen2.5-0.5b.
COST_GOALS_PERCENT = {1: 15, 8: 25, 16: 35}


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoraStepSettings(experiment.RandomModelSettings):
    streams: experiment.PositiveInt = 16
    "Batch size."
    adapters: experiment.PositiveInts = (1, 8, 16)
    "Numbers of different adapters in the batch; one row for each."
    ranks: Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1, lte=1024))] = (16,)
    "Ranks of the adapters, in turn."
    context: experiment.PositiveInt = 256
    "Context length in tokens."
    repeat: experiment.PositiveInt = 15
    "Number of measurements of each row, in turn; the figures are medians."


@dataclass(frozen=True, slots=True)
class LoraStepPoint:
    """Milliseconds of a decode step with one number of adapters, and the loss of throughput."""

    adapters: int
    step_ms: float
    cost_percent: float  # of the throughput without adapters, the median of the turns
    least: float
    most: float


def iter_linears(shape: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, input width and output width of every linear of every layer."""
    for name, tensor_shape in iter_tensor_shapes(MODEL_CONFIGS[shape]):
        if name.endswith("_proj.weight"):
            yield f"base_model.model.{name.removesuffix('.weight')}", tensor_shape[1], tensor_shape[0]


def write_random_adapter(shape: str, rank: int, folder: Path) -> Path:
    """Write a random adapter for all linears in PEFT's format, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, inputs, outputs in iter_linears(shape):
        shapes |= {f"{name}.lora_A.weight": (rank, inputs), f"{name}.lora_B.weight": (outputs, rank)}
    write_random_safetensors(folder / "adapter_model.safetensors", shapes)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder


def measure(loaded_model: LoadedDecoder, settings: LoraStepSettings) -> list[LoraStepPoint]:
    cache, _ = prepare_decode_step(loaded_model, settings.streams, settings.context)
    loaded_model.runner.cuda_graph_runner = loaded_model.capture_decode_steps(cache, settings.streams, settings.context)
    steps = {}
    for num_adapters in (0, *settings.adapters):
        _, steps[num_adapters] = prepare_decode_step(loaded_model, settings.streams, settings.context)
        for index, sequence in enumerate(steps[num_adapters].decodes):
            sequence.adapter_id = 1 + index % num_adapters if num_adapters else 0

    def run(step: Step) -> None:
        loaded_model.runner.run(step, cache)

    seconds_by_adapters = [{count: measure_seconds(partial(run, step)) for count, step in steps.items()}
                           for _ in range(settings.repeat + 2)]
    return [make_point(count, seconds_by_adapters[2:]) for count in steps]


def make_point(num_adapters: int, seconds_by_adapters: Sequence[dict[int, float]]) -> LoraStepPoint:
    costs = [100 * (1 - turn[0] / turn[num_adapters]) for turn in seconds_by_adapters]
    return LoraStepPoint(num_adapters, 1e3 * statistics.median(turn[num_adapters] for turn in seconds_by_adapters),
                         statistics.median(costs), min(costs), max(costs))


TABLE_COLUMNS = (("adapters", "{0.adapters}"), ("step ms", "{0.step_ms:.1f}"), ("cost %", "{0.cost_percent:.1f}"),
                 ("least", "{0.least:.1f}"), ("most", "{0.most:.1f}"))


def format_table(points: Sequence[LoraStepPoint]) -> str:
    return experiment.format_columns(TABLE_COLUMNS, [(one,) for one in points])


def make_summary(settings: LoraStepSettings, loaded_model: LoadedDecoder,
                 points: Sequence[LoraStepPoint]) -> dict[str, Any]:
    return {
        "cost_percent": {one.adapters: round(one.cost_percent, 1) for one in points if one.adapters},
        "goals": COST_GOALS_PERCENT,
        "shape": settings.shape, "streams": settings.streams, "ranks": settings.ranks, "context": settings.context,
        "dtype": str(loaded_model.dtype).removeprefix("torch."), "threads": torch.get_num_threads(),
        "repeat": settings.repeat, "points": [asdict(one) for one in points]}


def bench(settings: LoraStepSettings = LoraStepSettings()) -> None:
    """Measure decode steps in milliseconds, and the share of the throughput that adapters cost."""
    with settings.provide_model() as (folder, _), TemporaryDirectory() as adapter_folder:
        loaded_model = load_decoder_model(ShardConfig(model=str(folder), adaptable=True))
        for number in range(1, max(settings.adapters) + 1):
            rank = settings.ranks[number % len(settings.ranks)]
            adapter = write_random_adapter(settings.shape, rank, Path(adapter_folder))
            loaded_model.loaded_adapters.load(number, adapter)
        points = measure(loaded_model, settings)
    report_results(f"{settings.shape} adapters", format_table(points), make_summary(settings, loaded_model, points),
                   should_save=settings.save)


if __name__ == "__main__":
    experiment.run_experiment(bench)
