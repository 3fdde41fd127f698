"""Statistics of the runs of each batch size, and their Markdown tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.bench.report.summary import DistributionStats
from benchmarks.bench.shards.batch_run import BatchRunTimings, StepTiming

LATENCY_COLUMNS = ("average", "lowest", "highest", "p50", "p90", "p99")
THROUGHPUT_COLUMNS = LATENCY_COLUMNS[:3]


@dataclass(frozen=True, slots=True)
class BatchSizeStats:
    """Statistics of one batch size, in seconds and tokens per second."""

    batch_size: int
    prefill: DistributionStats
    decode: DistributionStats  # of single steps
    decode_total: DistributionStats  # of all decodes of a run
    prefill_forward: DistributionStats
    decode_forward: DistributionStats
    prefill_tokens_per_second: DistributionStats  # generated tokens: a prefill yields one for each sequence
    decode_tokens_per_second: DistributionStats


def summarize_batch_size(batch_size: int, runs: Sequence[BatchRunTimings]) -> BatchSizeStats:
    prefills = [run.prefill_timing for run in runs]
    decodes = [step for run in runs for step in run.decode_timings]
    return BatchSizeStats(
        batch_size,
        prefill=DistributionStats.from_values(step.wall_seconds for step in prefills),
        decode=DistributionStats.from_values(step.wall_seconds for step in decodes),
        decode_total=DistributionStats.from_values(sum(step.wall_seconds for step in run.decode_timings)
                                                   for run in runs),
        prefill_forward=DistributionStats.from_values(step.forward_seconds for step in prefills),
        decode_forward=DistributionStats.from_values(step.forward_seconds for step in decodes),
        prefill_tokens_per_second=DistributionStats.from_values(compute_tokens_per_second([step]) for step in prefills),
        decode_tokens_per_second=DistributionStats.from_values(compute_tokens_per_second(run.decode_timings)
                                                               for run in runs))


def compute_tokens_per_second(steps: Sequence[StepTiming]) -> float:
    return sum(step.num_tokens for step in steps) / sum(step.wall_seconds for step in steps)


def format_page(parameters: Mapping[str, Any], points: Sequence[BatchSizeStats],
                skipped_batch_sizes: Mapping[int, str]) -> str:
    parts = [
        format_markdown_table(["parameter", "value"], [[name, f"{value}"] for name, value in parameters.items()]),
        "Latency in ms:", format_latencies(points),
        "Tokens a second; those of a prefill are the first ones of answers:", format_throughputs(points),
        "Means in ms. The wire is what a step takes beside the forward pass of rank 0:", format_wire_times(points),
        *(f"Batch size {batch_size} was left out: {reason}." for batch_size, reason in skipped_batch_sizes.items())]
    return "\n\n".join(parts)


def format_latencies(all_stats: Sequence[BatchSizeStats]) -> str:
    kinds = (("prefill", "prefill"), ("decode (token)", "decode"), ("decode (total)", "decode_total"))
    return format_markdown_table(["step", "batch size", *LATENCY_COLUMNS], [
        [words, f"{one.batch_size}", *(f"{1e3 * value:.2f}" for value in select_table_statistics(getattr(one, name)))]
        for words, name in kinds for one in all_stats])


def format_throughputs(all_stats: Sequence[BatchSizeStats]) -> str:
    kinds = (("prefill", "prefill_tokens_per_second"), ("decode", "decode_tokens_per_second"))
    return format_markdown_table(["step", "batch size", *THROUGHPUT_COLUMNS], [
        [words, f"{one.batch_size}",
         *(f"{value:.2f}" for value in select_table_statistics(getattr(one, name))[:len(THROUGHPUT_COLUMNS)])]
        for words, name in kinds for one in all_stats])


def format_wire_times(all_stats: Sequence[BatchSizeStats]) -> str:
    rows = [(words, one.batch_size, getattr(one, name).mean, getattr(one, f"{name}_forward").mean)
            for words, name in (("prefill", "prefill"), ("decode (token)", "decode")) for one in all_stats]
    return format_markdown_table(["step", "batch size", "step ms", "forward ms", "wire ms"], [
        [words, f"{batch_size}", *(f"{1e3 * value:.3f}" for value in (wall, forward, wall - forward))]
        for words, batch_size, wall, forward in rows])


def select_table_statistics(stats: DistributionStats) -> tuple[float, ...]:
    return stats.mean, stats.least, stats.most, stats.p50, stats.p90, stats.p99


def format_markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text; the others are numbers."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = [[cell.rjust(width) if column else cell.ljust(width)
              for column, (cell, width) in enumerate(zip(row, widths, strict=True))] for row in (head, rule, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def to_json_dict(stats: BatchSizeStats) -> dict[str, Any]:
    """Return a point for JSON, rounded to microseconds."""
    return asdict(stats, dict_factory=lambda pairs: {
        name: round(value, 6) if isinstance(value, float) else value for name, value in pairs})
