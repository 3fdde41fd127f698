"""Table for the terminal with the figures of several runs side by side."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import isnan

from benchmarks.bench.report.result import Result, names_of
from benchmarks.bench.report.summary import SHARES, Summary
from benchmarks.bench.report.versus import RATES, SPREADS, percentile_of
from router.simulation.report import aligned, milliseconds

MOST_ERRORS, LONGEST = 3, 160  # errors shown of a run, and characters of one
COUNTS: dict[str, Callable[[Summary], float]] = {
    "fairness (Jain)": lambda summary: summary.fairness,
    "seconds": lambda summary: summary.seconds,
    "requests": lambda summary: summary.requests,
    "failed": lambda summary: summary.failed,
    "prompt tokens": lambda summary: summary.prompt_tokens,
    "tokens": lambda summary: summary.tokens,
}


def table(results: Sequence[Result]) -> str:
    """Return a table with a column for each run, followed by the most common errors."""
    lines = [f"{name}: {count} failed: {error}" for name, result in zip(names_of(results), results, strict=True)
             for error, count in errors(result).most_common(MOST_ERRORS)]
    return "\n".join([aligned(rows(results)), *lines])


def rows(results: Sequence[Result]) -> list[list[str]]:
    """Return the names of the runs, then a row for each figure that at least one of them has."""
    summaries = [result.summary for result in results]
    found = [["", *names_of(results)]]
    found += [[f"{name} p{share}, ms", *map(milliseconds, map(percentile_of(spread, share), summaries))]
              for name, spread in SPREADS.items() for share in SHARES]
    found += [[name, *map(number, map(figure, summaries))] for name, figure in (RATES | COUNTS).items()]
    units = dict.fromkeys(unit for result in results for unit in result.overhead)
    found += [[f"the bench itself, {unit}", *(number(result.overhead.get(unit)) for result in results)]
              for unit in units]
    return [row for row in found if set(row[1:]) != {"-"}]


def number(value: float | None) -> str:
    """Return a value with three significant digits, from 100 on as a whole number."""
    if value is None or isnan(value):
        return "-"
    return f"{value:.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def errors(result: Result) -> Counter[str]:
    """Count the errors of requests due in the window.

    Texts are shortened and stripped of control characters, which a terminal would obey."""
    begin, end = result.window
    return Counter(readable(record.error) for record in result.records if record.error and begin <= record.due < end)


def readable(text: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
