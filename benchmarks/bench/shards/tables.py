"""Statistics of the runs of each batch size, and their Markdown tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.bench.report.summary import Spread
from benchmarks.bench.shards.batch_run import Run, Step

LATENCY = ("average", "lowest", "highest", "p50", "p90", "p99")
THROUGHPUT = LATENCY[:3]


@dataclass(frozen=True, slots=True)
class Point:
    """Statistics of one batch size, in seconds and tokens per second."""

    batch_size: int
    prefill: Spread
    decode: Spread  # of single steps
    decode_total: Spread  # of all decodes of a run
    prefill_forward: Spread
    decode_forward: Spread
    prefill_tokens_per_second: Spread  # generated tokens: a prefill yields one for each sequence
    decode_tokens_per_second: Spread


def point(batch_size: int, runs: Sequence[Run]) -> Point:
    prefills = [run.prefill for run in runs]
    decodes = [step for run in runs for step in run.decodes]
    return Point(
        batch_size,
        prefill=Spread.of(step.wall for step in prefills),
        decode=Spread.of(step.wall for step in decodes),
        decode_total=Spread.of(sum(step.wall for step in run.decodes) for run in runs),
        prefill_forward=Spread.of(step.forward for step in prefills),
        decode_forward=Spread.of(step.forward for step in decodes),
        prefill_tokens_per_second=Spread.of(pace([step]) for step in prefills),
        decode_tokens_per_second=Spread.of(pace(run.decodes) for run in runs))


def pace(steps: Sequence[Step]) -> float:
    return sum(step.num_tokens for step in steps) / sum(step.wall for step in steps)


def page(parameters: Mapping[str, Any], points: Sequence[Point], left_out: Mapping[int, str]) -> str:
    parts = [
        markdown(["parameter", "value"], [[name, f"{value}"] for name, value in parameters.items()]),
        "Latency in ms:", latencies(points),
        "Tokens a second; those of a prefill are the first ones of answers:", throughputs(points),
        "Means in ms. The wire is what a step takes beside the forward pass of rank 0:", wire(points),
        *(f"Batch size {batch_size} was left out: {why}." for batch_size, why in left_out.items())]
    return "\n\n".join(parts)


def latencies(points: Sequence[Point]) -> str:
    kinds = (("prefill", "prefill"), ("decode (token)", "decode"), ("decode (total)", "decode_total"))
    return markdown(["step", "batch size", *LATENCY], [
        [words, f"{one.batch_size}", *(f"{1e3 * value:.2f}" for value in figures(getattr(one, name)))]
        for words, name in kinds for one in points])


def throughputs(points: Sequence[Point]) -> str:
    kinds = (("prefill", "prefill_tokens_per_second"), ("decode", "decode_tokens_per_second"))
    return markdown(["step", "batch size", *THROUGHPUT], [
        [words, f"{one.batch_size}", *(f"{value:.2f}" for value in figures(getattr(one, name))[:len(THROUGHPUT)])]
        for words, name in kinds for one in points])


def wire(points: Sequence[Point]) -> str:
    rows = [(words, one.batch_size, getattr(one, name).mean, getattr(one, f"{name}_forward").mean)
            for words, name in (("prefill", "prefill"), ("decode (token)", "decode")) for one in points]
    return markdown(["step", "batch size", "step ms", "forward ms", "wire ms"], [
        [words, f"{batch_size}", *(f"{1e3 * value:.3f}" for value in (wall, forward, wall - forward))]
        for words, batch_size, wall, forward in rows])


def figures(spread: Spread) -> tuple[float, ...]:
    return spread.mean, spread.least, spread.most, spread.p50, spread.p90, spread.p99


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text; the others are numbers."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = [[cell.rjust(width) if place else cell.ljust(width)
              for place, (cell, width) in enumerate(zip(row, widths, strict=True))] for row in (head, rule, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def told(one: Point) -> dict[str, Any]:
    """Return a point for JSON, rounded to microseconds."""
    return asdict(one, dict_factory=lambda pairs: {
        name: round(value, 6) if isinstance(value, float) else value for name, value in pairs})
