"""HTML report of runs: settings, figures, plots, and errors of requests.

The page is one file that needs neither network nor scripts. Text from servers and settings is escaped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from benchmarks.bench.report import plots
from benchmarks.bench.report.result import Result, names_of
from benchmarks.bench.report.table import errors, rows
from benchmarks.bench.report.versus import Ratio, ratio_rows

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --soft: #666666; --rule: #dddddd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #17191c; --soft: #a0a0a0; --rule: #3a3d42; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 58rem;
  margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; } h3 { margin-bottom: 0.5rem; }
p, figcaption { color: var(--soft); max-width: 44rem; }
.wide { overflow-x: auto; }
pre { white-space: pre-wrap; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; } tbody th { font-weight: 400; color: var(--soft); overflow-wrap: normal; }
.figures td, .figures thead th + th { text-align: right; overflow-wrap: normal; }
figure { margin: 0 0 2rem; break-inside: avoid; } figure svg { background: #ffffff; width: 100%; height: auto; }
section, tr { break-inside: avoid; }
@media print { body { max-width: none; margin: 0; font-size: 11px; color: #000000; background: #ffffff; } }
"""
PLOTS: Mapping[str, tuple[Callable[[Sequence[Result]], str], str]] = {
    "Time to the first token": (
        plots.first_tokens, "The share of answers whose first token came within a time: further left is better."),
    "Time between tokens": (
        plots.gaps, "The share of pauses no longer than a time: a long tail at the top is text that stutters."),
    "Time to the end of an answer": (
        plots.latencies, "The share of answers that were complete within a time: further left is better."),
    "Latency by tokens asked for": (
        plots.latency_by_tokens, "Each dot is an answer: the line nearest to all of them rises by the time of a token, "
        "and dots far above it waited."),
    "Tokens over time": (
        plots.throughput, "Tokens that arrived, of all requests together: between the dotted lines, where figures are "
        "taken, it should neither rise nor fall for long."),
    "Requests in flight": (
        plots.in_flight, "Requests that were sent and not yet answered: a line that keeps rising is more load than can "
        "be served."),
    "Latency over time": (
        plots.latency_over_time, "Each dot is an answer: dots that keep rising are requests that wait ever longer."),
}
MOST_ERRORS = 20  # errors of a run
READ = ("How many times the figures of the second are the first's: the median of the turns, and the least and the most "
        "of them. Where these lie on both sides of 1 the turns do not tell which is better.")


def html(results: Sequence[Result], comparison: Sequence[Ratio] = ()) -> str:
    names = escape(" and ".join(distinct(result.name for result in results)))
    parts = [
        lead(results), section("Figures", table(rows(results), "figures")),
        compared(comparison) if comparison else "", *(plotted(title, results) for title in PLOTS),
        failures(results) if any(map(errors, results)) else "", section("Runs", table(facts(results), "facts"))]
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width">\n<title>weft bench: {names}</title>\n'
            f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>weft bench: {names}</h1>\n"
            f"{''.join(parts)}</body>\n</html>\n")


def distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def lead(results: Sequence[Result]) -> str:
    when = "; ".join(distinct(f"{result.date}, {result.hardware}" for result in results))
    commands = "".join(f"<pre>{escape(command)}</pre>\n" for command in distinct(result.command for result in results))
    return f"<p>{escape(when)}</p>\n{commands}"


def section(title: str, body: str) -> str:
    return f'<section>\n<h2>{title}</h2>\n<div class="wide">{body}</div>\n</section>\n'


def table(cells: Sequence[Sequence[str]], kind: str) -> str:
    """Return an HTML table; the first row is its head, the first cell of a row the row's name."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in cells[0])
    body = "\n".join(f"<tr><th>{escape(name)}</th>{columns(values, kind)}</tr>" for name, *values in cells[1:])
    return f'<table class="{kind}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n'


def columns(values: Sequence[str], kind: str) -> str:
    """Return the cells of a row; a fact that all runs share is one wide cell."""
    if kind == "facts" and len(set(values)) == 1:
        return f'<td colspan="{len(values)}">{escape(values[0])}</td>'
    return "".join(f"<td>{escape(value)}</td>" for value in values)


def compared(comparison: Sequence[Ratio]) -> str:
    return section("Comparison", f"{table(ratio_rows(comparison), 'figures')}<p>{READ}</p>\n")


def plotted(title: str, results: Sequence[Result]) -> str:
    draw, caption = PLOTS[title]
    if not (plot := draw(results)):
        return ""  # for example, time to first token of answers that were not streamed
    return f"<figure>\n<h3>{title}</h3>\n{plot}\n<figcaption>{caption}</figcaption>\n</figure>\n"


def failures(results: Sequence[Result]) -> str:
    lines = [[name, f"{count}", error] for name, result in zip(names_of(results), results, strict=True)
             for error, count in errors(result).most_common(MOST_ERRORS)]
    return section("Failures", table([["run", "requests", "what was said"], *lines], "failures"))


def facts(results: Sequence[Result]) -> list[list[str]]:
    of_each = [{"date": result.date, "hardware": result.hardware, **result.versions,
                **{name: f"{value}" for name, value in result.settings.items()}} for result in results]
    names = distinct(name for of_one in of_each for name in of_one)
    return [["", *names_of(results)],
            *([name, *(of_one.get(name, "-") for of_one in of_each)] for name in names)]
