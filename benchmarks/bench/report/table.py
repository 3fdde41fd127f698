"""Table for the terminal with the figures of several runs side by side."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import isnan

from benchmarks.bench.report.result import BenchResult, make_unique_run_names
from benchmarks.bench.report.server_comparison import LATENCY_FIGURES, RATE_FIGURES, make_percentile_getter
from benchmarks.bench.report.summary import PERCENTILES, RunSummary
from router.simulation.run_stats import align_columns, format_seconds_as_ms

MAX_ERRORS_SHOWN, MAX_ERROR_CHARS = 3, 160  # errors shown of a run, and characters of one
COUNT_FIGURES: dict[str, Callable[[RunSummary], float]] = {
    "fairness (Jain's index)": lambda summary: summary.fairness,
    "seconds": lambda summary: summary.seconds,
    "requests": lambda summary: summary.requests,
    "failed": lambda summary: summary.failed,
    "prompt tokens": lambda summary: summary.prompt_tokens,
    "tokens": lambda summary: summary.tokens,
}


def format_table(results: Sequence[BenchResult]) -> str:
    """Return a table with a column for each run, followed by the most common errors."""
    error_lines = [f"{name}: {count} failed: {error}"
                   for name, result in zip(make_unique_run_names(results), results, strict=True)
                   for error, count in count_errors(result).most_common(MAX_ERRORS_SHOWN)]
    return "\n".join([align_columns(make_table_rows(results)), *error_lines])


def format_headline(result: BenchResult) -> str:
    """Return the figures that matter most, in one line."""
    summary = result.summary
    parts = [f"{format_number(summary.tokens_per_second)} tokens/s"]
    if summary.first_token.count:
        parts.append(f"first token {format_seconds_as_ms(summary.first_token.p50)} ms (p50), "
                     f"{format_seconds_as_ms(summary.first_token.p99)} ms (p99)")
    if summary.between_tokens.count:
        parts.append(f"between tokens {format_seconds_as_ms(summary.between_tokens.p99)} ms (p99)")
    if not isnan(summary.goodput):
        parts.append(f"goodput {format_number(summary.goodput)} requests/s")
    return "; ".join(parts + [f"{summary.failed} of {summary.requests} failed"] * bool(summary.failed))


def make_headlines(results: Sequence[BenchResult]) -> list[str]:
    return [f"{name}: {format_headline(result)}"
            for name, result in zip(make_unique_run_names(results), results, strict=True)]


def make_table_rows(results: Sequence[BenchResult]) -> list[list[str]]:
    """Return the names of the runs, then a row for each figure that at least one of them has."""
    summaries = [result.summary for result in results]
    all_rows = [["", *make_unique_run_names(results)]]
    all_rows += [[f"{name} p{share}, ms",
                  *map(format_seconds_as_ms, map(make_percentile_getter(spread, share), summaries))]
                 for name, spread in LATENCY_FIGURES.items() for share in PERCENTILES]
    all_rows += [[name, *map(format_number, map(figure, summaries))]
                 for name, figure in (RATE_FIGURES | COUNT_FIGURES).items()]
    units = dict.fromkeys(unit for result in results for unit in result.overhead)
    all_rows += [[f"load generator, {unit}", *(format_number(result.overhead.get(unit)) for result in results)]
                 for unit in units]
    return [row for row in all_rows if set(row[1:]) != {"-"}]


def format_number(value: float | None) -> str:
    """Return a value with three significant digits, from 100 on as a whole number."""
    if value is None or isnan(value):
        return "-"
    return f"{value:.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def count_errors(result: BenchResult) -> Counter[str]:
    """Count the errors of requests due in the window.

    Texts are shortened and stripped of control characters, which a terminal would obey."""
    start, end = result.window
    return Counter(format_error(record.error) for record in result.records if record.error and start
                   <= record.due_at < end)


def format_error(text: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[:MAX_ERROR_CHARS]} ..."
