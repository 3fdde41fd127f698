"""Table rows of each command, one per point. The functions run in a process that has the card to itself."""

import sys
from collections.abc import Sequence
from statistics import median

import torch

from benchmarks.gpu.burst_throughput import ModelLoadOptions
from benchmarks.gpu.report import TableRow
from benchmarks.gpu.roofline import DeviceRates, compute_model_sizes
from benchmarks.gpu.step_timer import StepTimer
from benchmarks.harness.random_checkpoints import MODEL_CONFIGS
from benchmarks.harness.random_step_inputs import BLOCK_SIZE, num_blocks_for
from shard.config import ShardConfig
from shard.hardware.cache_budget import format_gib
from shard.hardware.dtype import dtype_name
from shard.workers.model_loading import LoadedDecoder, load_decoder_model

# Goals on an H200; the shares are goals on every card.
LARGEST_SHAPE = "llama-3.1-8b"
DECODE_STEP_GOALS_MS = {  # milliseconds, by shape, context and number of sequences
    (LARGEST_SHAPE, 512, 1): 5.0, (LARGEST_SHAPE, 512, 256): 1e3 * 256 / 19_000, ("llama-3.2-1b", 512, 1): 1.3}
PREFILL_GOALS_PERCENT = {(LARGEST_SHAPE, 2048): 65.0}  # percent of the rate of products, by shape and length
HTTP_THROUGHPUT_GOALS = {(LARGEST_SHAPE, 64): 0.85}  # of the shard alone, by shape and number of streams


def measure_decode_latencies(shape: str, load_options: ModelLoadOptions, device_rates: DeviceRates,
                             contexts_and_batches: Sequence[tuple[int, int]], num_repetitions: int, *,
                             cuda_graphs: bool, exact: bool) -> list[TableRow]:
    """Measure decode steps. A point is a context length and a number of sequences; those whose cache does not fit
    into memory are left out."""
    loaded_model = load_decoder_model(ShardConfig(model=load_options.folder, device=load_options.device,
                                                  dtype=load_options.dtype, cuda_graphs=cuda_graphs, exact=exact))
    points = select_points_fitting_memory(loaded_model, contexts_and_batches)
    step_timer = StepTimer(loaded_model, max(batch for _, batch in points), max(context for context, _ in points),
                           max(batch * num_blocks_for(context) for context, batch in points))
    model_sizes = compute_model_sizes(MODEL_CONFIGS[shape], loaded_model.dtype)
    goals = DECODE_STEP_GOALS_MS if is_h200(load_options.device) else {}

    def measure_row(context: int, batch: int) -> TableRow:
        seconds = step_timer.time_decode_steps(batch, context, num_repetitions)
        ideal_seconds = model_sizes.ideal_decode_seconds(device_rates, batch, context)
        return print_row({"model": shape, "context": context, "sequences": batch, **summarize_as_milliseconds(seconds),
                          "goal": round_or_blank(goals.get((shape, context, batch))),
                          "tokens/s": round(batch / median(seconds)), "ideal ms": round_or_blank(1e3 * ideal_seconds),
                          "share %": round(100 * ideal_seconds / median(seconds), 1),
                          "numbers": dtype_name(loaded_model.dtype),
                          "replayed": "yes" if step_timer.uses_cuda_graphs else "no"})
    return [measure_row(context, batch) for context, batch in points]


def select_points_fitting_memory(loaded_model: LoadedDecoder,
                                 contexts_and_batches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the points whose cache has room, and print the others. Raises ValueError if there are none."""
    budget, block_bytes = loaded_model.compute_cache_budget(), loaded_model.bytes_per_block(BLOCK_SIZE)
    fitting_points = list[tuple[int, int]]()
    for context, batch in contexts_and_batches:
        needed_bytes = batch * num_blocks_for(context) * block_bytes
        if needed_bytes <= budget.bytes:
            fitting_points.append((context, batch))
        else:
            print(f"left out: {batch} sequences of {context} tokens need a cache of {format_gib(needed_bytes)}, and "
                  f"there is room for {format_gib(budget.bytes)}", file=sys.stderr, flush=True)
    if not fitting_points:
        raise ValueError("the memory has no room for any of these batches; name smaller ones with --batch or --context")
    return fitting_points


def measure_prefill_latencies(shape: str, load_options: ModelLoadOptions, device_rates: DeviceRates,
                              prompt_lengths: Sequence[int], num_repetitions: int) -> list[TableRow]:
    loaded_model = load_decoder_model(ShardConfig(model=load_options.folder, device=load_options.device,
                                                  dtype=load_options.dtype))
    step_timer, model_sizes = StepTimer(loaded_model, 1, max(prompt_lengths)), compute_model_sizes(MODEL_CONFIGS[shape],
                                                                                                   loaded_model.dtype)

    def measure_row(prompt_length: int) -> TableRow:
        seconds = step_timer.time_prefill([prompt_length], num_repetitions)
        share = model_sizes.prefill_flops(prompt_length) / median(seconds) / device_rates.flops_per_second
        return print_row({"model": shape, "tokens": prompt_length, **summarize_as_milliseconds(seconds),
                          "tokens/s": round(prompt_length / median(seconds)), "of products %": round(100 * share, 1),
                          "goal": round_or_blank(PREFILL_GOALS_PERCENT.get((shape, prompt_length))),
                          "numbers": dtype_name(loaded_model.dtype)})
    return [measure_row(length) for length in prompt_lengths]


def is_h200(device_type: str) -> bool:
    return device_type == "cuda" and "H200" in torch.cuda.get_device_name()


def print_row(row: TableRow) -> TableRow:
    """Print a row as soon as it is measured, in case the table is never printed, and return it."""
    print(", ".join(f"{value} {column}" for column, value in row.items() if value != ""), file=sys.stderr, flush=True)
    return row


def summarize_as_milliseconds(seconds: Sequence[float]) -> TableRow:
    return {"ms": round_or_blank(1e3 * median(seconds)), "least": round_or_blank(1e3 * min(seconds)),
            "most": round_or_blank(1e3 * max(seconds))}


def round_or_blank(number: float | None) -> float | str:
    return "" if number is None else round(number, 2)
