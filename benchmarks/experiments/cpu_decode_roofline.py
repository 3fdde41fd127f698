"""Decode steps beside the machine's limits: reading their weights and cache once, and multiplying.

On a random model in a real shape, with weights of 16, 8 and 4 bits. The rates of reading and of multiplying are
measured beside each step, since machines differ and change.
`python -P -m benchmarks.experiments.cpu_decode_roofline --help` lists the settings. The last line is JSON.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from torch import Tensor

from benchmarks.experiments.decode_step_beyond_matmuls import prepare_decode_step
from benchmarks.harness import experiment
from benchmarks.harness.reporting import report_results
from shard.checkpoint.reader import count_quantizable_weight_bytes
from shard.config import ShardConfig
from shard.workers.model_loading import LoadedDecoder, load_decoder_model

NUM_READ_BYTES = 2**28  # far more than a cache of the processor holds
MATRIX_SIZE = 1024  # of the product that measures the rate of multiplying
STORED_ITEMSIZE = 2  # bytes of a weight in the random checkpoints
BYTES_PER_WEIGHT = {"16": 2.0, "int8": 1.0, "int4": 0.5}  # scales not counted
NUM_WARM_UP_TURNS = 2


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDecodeRooflineSettings(experiment.RandomModelSettings):
    formats: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = tuple(BYTES_PER_WEIGHT)
    "Weights: 16 bits as in the checkpoint, or quantized to int8 or int4."
    batch: experiment.PositiveInts = (1, 8, 32)
    "Batch sizes; one row for each."
    context: experiment.PositiveInt = 256
    "Context length in tokens."
    repeat: experiment.PositiveInt = 15
    "Measurements of each row; the figures are medians."
    threads: int = 0
    "Threads; 0: as many as `weft serve` uses."


@dataclass(frozen=True, slots=True)
class StepWork:
    """Least work of a step: bytes to read and operations to do."""

    num_bytes: float  # of weights and cache, each read once
    num_operations: float  # multiplications and additions of the products

    def minimum_seconds(self, read_rate: float, multiply_rate: float) -> float:
        """Return the time that no step can beat at these rates, by the second."""
        return max(self.num_bytes / read_rate, self.num_operations / multiply_rate)


@dataclass(frozen=True, slots=True)
class CpuDecodeRooflinePoint:
    """A decode step beside its limits; medians over the turns."""

    weights: str
    batch: int
    step_ms: float
    read_limit_ms: float
    multiply_limit_ms: float
    share: float  # limit / step


def count_work(loaded_model: LoadedDecoder, folder: Path, weights: str, batch: int, context: int) -> StepWork:
    config = loaded_model.config
    num_tied_weights = config.vocabulary_size * config.hidden_size if config.tie_word_embeddings else 0  # of the head
    num_weights = count_quantizable_weight_bytes(folder) // STORED_ITEMSIZE + num_tied_weights
    cache_bytes = loaded_model.bytes_per_block(1) * context * batch
    return StepWork(num_weights * BYTES_PER_WEIGHT[weights] + cache_bytes, 2.0 * num_weights * batch)


def measure_read_rate(numbers: Tensor) -> float:
    """Return the bytes per second at which all threads together sum numbers."""
    started_at = perf_counter()
    numbers.sum()
    return numbers.nbytes / (perf_counter() - started_at)


def measure_multiply_rate(matrix: Tensor) -> float:
    """Return the multiplications and additions per second of a product of matrices by torch."""
    started_at = perf_counter()
    torch.mm(matrix, matrix)
    return 2.0 * len(matrix)**3 / (perf_counter() - started_at)


def measure(loaded_model: LoadedDecoder, folder: Path, weights: str, batch: int,
            settings: CpuDecodeRooflineSettings) -> CpuDecodeRooflinePoint:
    cache, step = prepare_decode_step(loaded_model, batch, settings.context)
    work = count_work(loaded_model, folder, weights, batch, settings.context)
    numbers = torch.zeros(NUM_READ_BYTES // 4)
    matrix = torch.rand(MATRIX_SIZE, MATRIX_SIZE, dtype=loaded_model.dtype)  # the model's: AMX has no float32
    turns: list[tuple[float, float, float]] = []  # seconds of the step, rates of reading and multiplying
    for _ in range(settings.repeat + NUM_WARM_UP_TURNS):
        started_at = perf_counter()
        loaded_model.runner.run(step, cache)
        turns.append((perf_counter() - started_at, measure_read_rate(numbers), measure_multiply_rate(matrix)))
    return make_point(weights, batch, work, turns[NUM_WARM_UP_TURNS:])


def make_point(weights: str, batch: int, work: StepWork,
               turns: Sequence[tuple[float, float, float]]) -> CpuDecodeRooflinePoint:
    seconds, read_rate, multiply_rate = (statistics.median(column) for column in zip(*turns, strict=True))
    shares = [work.minimum_seconds(read, multiply) / step for step, read, multiply in turns]
    return CpuDecodeRooflinePoint(weights, batch, 1e3 * seconds, 1e3 * work.num_bytes / read_rate,
                                  1e3 * work.num_operations / multiply_rate, statistics.median(shares))


COLUMNS = (("weights", "{0.weights}"), ("batch", "{0.batch}"), ("step ms", "{0.step_ms:.1f}"),
           ("read ms", "{0.read_limit_ms:.1f}"), ("multiply ms", "{0.multiply_limit_ms:.1f}"),
           ("of limit %", "{1:.0f}"))


def format_table(points: Sequence[CpuDecodeRooflinePoint]) -> str:
    return experiment.format_columns(COLUMNS, [(point, 100 * point.share) for point in points], width=12)


def make_summary(settings: CpuDecodeRooflineSettings, points: Sequence[CpuDecodeRooflinePoint]) -> dict[str, Any]:
    return {"shape": settings.shape, "context": settings.context, "threads": torch.get_num_threads(),
            "repeat": settings.repeat, "points": [
                {name: value if isinstance(value, str) else round(value, 3) for name, value in asdict(point).items()}
                for point in points]}


def bench(settings: CpuDecodeRooflineSettings = CpuDecodeRooflineSettings()) -> None:
    """Measure decode steps on the CPU, and the time that their reading and multiplying take at least."""
    if unknown := set(settings.formats).difference(BYTES_PER_WEIGHT):
        raise ValueError(f"--formats must be of {', '.join(BYTES_PER_WEIGHT)}, got {', '.join(sorted(unknown))}")
    points: list[CpuDecodeRooflinePoint] = []
    with settings.provide_model() as (folder, _):
        for weights in settings.formats:
            loaded_model = load_decoder_model(ShardConfig(
                model=str(folder), device="cpu", quantize="" if weights == "16" else weights,
                threads=settings.threads))
            points += [measure(loaded_model, folder, weights, batch, settings) for batch in settings.batch]
    report_results(f"{settings.shape} step limits", format_table(points), make_summary(settings, points),
                   should_save=settings.save)


if __name__ == "__main__":
    experiment.run_experiment(bench)
