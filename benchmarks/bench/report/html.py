"""HTML report of runs: settings, figures, plots, and errors of requests.

The page is one file that needs neither network nor scripts. Text from servers and settings is escaped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from benchmarks.bench.report import plots
from benchmarks.bench.report.result import BenchResult, make_unique_run_names
from benchmarks.bench.report.server_comparison import MetricComparison, make_ratio_rows
from benchmarks.bench.report.table import count_errors, make_headlines, make_table_rows

PAGE_CSS = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --soft: #666666; --rule: #dddddd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #17191c; --soft: #a0a0a0; --rule: #3a3d42; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 58rem;
  margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; } h3 { margin-bottom: 0.5rem; }
p, figcaption { color: var(--soft); max-width: 44rem; }
p.headline { color: inherit; font-size: 1.15rem; font-weight: 600; }
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
PLOTS: Mapping[str, tuple[Callable[[Sequence[BenchResult]], str], str]] = {
    "Time to the first token": (
        plots.plot_time_to_first_token,
        "The share of answers whose first token came within a time: further left is better."),
    "Time between tokens": (
        plots.plot_inter_token_times,
        "The share of pauses no longer than a time: a long tail at the top is text that stutters."),
    "Tokens over time": (
        plots.plot_throughput,
        "Tokens that arrived, of all requests together: between the dotted lines, where figures are "
        "taken, it should neither rise nor fall for long."),
    "Time to the end of an answer": (
        plots.plot_latency, "The share of answers that were complete within a time: further left is better."),
    "Latency by tokens asked for": (
        plots.plot_latency_by_tokens,
        "Each dot is an answer: the line nearest to all of them rises by the time of a token, "
        "and dots far above it waited."),
    "Requests in flight": (
        plots.plot_requests_in_flight,
        "Requests that were sent and not yet answered: a line that keeps rising is more load than can "
        "be served."),
    "Latency over time": (
        plots.plot_latency_over_time,
        "Each dot is an answer: dots that keep rising are requests that wait ever longer."),}
NUM_FIRST_PLOTS = 3  # plots before the first table
MAX_ERRORS_SHOWN = 20  # errors of a run
RATIO_EXPLANATION = (
    "How many times the figures of the second are the first's: the median of the turns, and the least and the most "
                     "of them. Where these lie on both sides of 1 the turns do not tell which is better.")


def render_html(results: Sequence[BenchResult], comparison: Sequence[MetricComparison] = ()) -> str:
    names = escape(" and ".join(unique_texts(result.name for result in results)))
    first_plots, other_plots = list(PLOTS)[:NUM_FIRST_PLOTS], list(PLOTS)[NUM_FIRST_PLOTS:]
    sections = [render_introduction(results), *(render_plot(title, results) for title in first_plots),
                render_section("Figures", render_table(make_table_rows(results), "figures")),
                render_comparison(comparison) if comparison else "",
                *(render_plot(title, results) for title in other_plots),
                render_failures(results) if any(map(count_errors, results)) else "",
                render_section("Runs", render_table(make_fact_rows(results), "facts"))]
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width">\n<title>weft bench: {names}</title>\n'
            f"<style>{PAGE_CSS}</style>\n</head>\n<body>\n<h1>weft bench: {names}</h1>\n"
            f"{''.join(sections)}</body>\n</html>\n")


def unique_texts(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def render_introduction(results: Sequence[BenchResult]) -> str:
    when = "; ".join(unique_texts(f"{result.date}, {result.hardware}" for result in results))
    commands = "".join(f"<pre>{escape(command)}</pre>\n"
                       for command in unique_texts(result.command for result in results))
    headlines = "".join(f'<p class="headline">{escape(line)}</p>\n' for line in make_headlines(results))
    return f"{headlines}<p>{escape(when)}</p>\n{commands}"


def render_section(title: str, body: str) -> str:
    return f'<section>\n<h2>{title}</h2>\n<div class="wide">{body}</div>\n</section>\n'


def render_table(table_rows: Sequence[Sequence[str]], css_class: str) -> str:
    """Return an HTML table; the first row is its head, the first cell of a row the row's name."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table_rows[0])
    body = "\n".join(f"<tr><th>{escape(name)}</th>{render_value_cells(values, css_class)}</tr>"
                     for name, *values in table_rows[1:])
    return f'<table class="{css_class}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n'


def render_value_cells(values: Sequence[str], css_class: str) -> str:
    """Return the cells of a row; a fact that all runs share is one wide cell."""
    if css_class == "facts" and len(set(values)) == 1:
        return f'<td colspan="{len(values)}">{escape(values[0])}</td>'
    return "".join(f"<td>{escape(value)}</td>" for value in values)


def render_comparison(comparison: Sequence[MetricComparison]) -> str:
    return render_section("Comparison",
                          f"{render_table(make_ratio_rows(comparison), 'figures')}<p>{RATIO_EXPLANATION}</p>\n")


def render_plot(title: str, results: Sequence[BenchResult]) -> str:
    draw, caption = PLOTS[title]
    if not (plot := draw(results)):
        return ""  # for example, time to first token of answers that were not streamed
    return f"<figure>\n<h3>{title}</h3>\n{plot}\n<figcaption>{caption}</figcaption>\n</figure>\n"


def render_failures(results: Sequence[BenchResult]) -> str:
    lines = [[name, f"{count}", error] for name, result in zip(make_unique_run_names(results), results, strict=True)
             for error, count in count_errors(result).most_common(MAX_ERRORS_SHOWN)]
    return render_section("Failures", render_table([["run", "requests", "what was said"], *lines], "failures"))


def make_fact_rows(results: Sequence[BenchResult]) -> list[list[str]]:
    facts_by_run = [{"date": result.date, "hardware": result.hardware, **result.versions,
                     **{name: f"{value}" for name, value in result.settings.items()}} for result in results]
    fact_names = unique_texts(name for of_one in facts_by_run for name in of_one)
    return [["", *make_unique_run_names(results)],
            *([name, *(of_one.get(name, "-") for of_one in facts_by_run)] for name in fact_names)]
