"""Table rows of each command, one per point. The functions run in a process that has the card to itself."""

import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.gpu.roofline import Rates, sizes
from benchmarks.gpu.steps import Stage
from benchmarks.gpu.throughput import Where
from benchmarks.harness.checkpoints import SHAPES
from shard.config import ShardConfig
from shard.host.dtype import name
from shard.workers.load_decoder import load

Row = dict[str, Any]  # by name of a column

# Goals on an H200.
LARGEST = "llama-3.1-8b"
STEP_GOALS = {  # milliseconds, by shape, context and number of sequences
    (LARGEST, 512, 1): 5.0, (LARGEST, 512, 256): 1e3 * 256 / 19_000, ("llama-3.2-1b", 512, 1): 1.3}
PROMPT_GOALS = {(LARGEST, 2048): 65.0}  # percent of the rate of products, by shape and length
SERVED_GOALS = {(LARGEST, 64): 0.85}  # of the shard alone, by shape and number of streams


def decode_rows(shape: str, where: Where, card: Rates, points: Sequence[tuple[int, int]], repeat: int, *,
                cuda_graphs: bool, exact: bool) -> list[Row]:
    """Measure decode steps. A point is a context length and a number of sequences."""
    loaded = load(ShardConfig(model=where.folder, device=where.device, dtype=where.dtype, cuda_graphs=cuda_graphs,
                              exact=exact))
    most, longest = max(batch for _, batch in points), max(context for context, _ in points)
    stage, size = Stage(loaded, most, longest), sizes(SHAPES[shape], loaded.dtype)

    def row(context: int, batch: int) -> Row:
        seconds = stage.decode_seconds(batch, context, repeat)
        ideal = size.decode_seconds(card, batch, context)
        return noted({"model": shape, "context": context, "sequences": batch, **milliseconds(seconds),
                      "goal": rounded(STEP_GOALS.get((shape, context, batch))),
                      "tokens/s": round(batch / median(seconds)), "ideal ms": rounded(1e3 * ideal),
                      "share %": round(100 * ideal / median(seconds), 1), "numbers": name(loaded.dtype),
                      "replayed": "yes" if stage.replayed else "no"})
    return [row(context, batch) for context, batch in points]


def prompt_rows(shape: str, where: Where, card: Rates, lengths: Sequence[int], repeat: int) -> list[Row]:
    loaded = load(ShardConfig(model=where.folder, device=where.device, dtype=where.dtype))
    stage, size = Stage(loaded, 1, max(lengths)), sizes(SHAPES[shape], loaded.dtype)

    def row(length: int) -> Row:
        seconds = stage.prompt_seconds([length], repeat)
        share = size.prompt_operations(length) / median(seconds) / card.operations
        return noted({"model": shape, "tokens": length, **milliseconds(seconds),
                      "tokens/s": round(length / median(seconds)), "of products %": round(100 * share, 1),
                      "goal": rounded(PROMPT_GOALS.get((shape, length))), "numbers": name(loaded.dtype)})
    return [row(length) for length in lengths]


def noted(row: Row) -> Row:
    """Print a row as soon as it is measured, in case the table is never printed, and return it."""
    print(", ".join(f"{value} {column}" for column, value in row.items() if value != ""), file=sys.stderr, flush=True)
    return row


def compared(one: str, other: str, turns: Sequence[tuple[float, float]]) -> Row:
    """Return the medians of both rates, and median, least and most of their ratios by turn."""
    ratios = [mine / theirs for mine, theirs in turns]
    mine, theirs = map(median, zip(*turns, strict=True))
    return {f"{one} tokens/s": round(mine), f"{other} tokens/s": round(theirs), "ratio": round(median(ratios), 3),
            "least": round(min(ratios), 3), "most": round(max(ratios), 3)}


def milliseconds(seconds: Sequence[float]) -> Row:
    return {"ms": rounded(1e3 * median(seconds)), "least": rounded(1e3 * min(seconds)),
            "most": rounded(1e3 * max(seconds))}


def rounded(number: float | None) -> float | str:
    return "" if number is None else round(number, 2)
