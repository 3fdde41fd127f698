"""Plots of runs as SVG to embed in a page; the same records give the same bytes.

Runs of one name share a color, a line and a marker, and can be distinguished in grey. A plot with nothing to show, such
as the time to first token of answers that were not streamed, is an empty string.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

from benchmarks.bench.load.request_records import RequestRecord
from benchmarks.bench.report.plot_data import (
    MAX_DOTS,
    PlotPoint,
    choose_bin_width,
    compute_run_duration,
    compute_token_rates,
    count_requests_in_flight,
    cumulative_distribution,
    downsample,
    fit_line,
    select_successful_in_window,
)
from benchmarks.bench.report.result import BenchResult
from router.simulation.run_stats import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING_PACKAGES_ERROR = "the HTML report needs packages that are not installed: pip install 'weft[bench]'"
FIGURE_SIZE = 7.2, 3.4  # inches
MATPLOTLIB_RC = {
    "font.size": 10, "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"], "svg.fonttype": "none",
    "text.parse_math": False, "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.handlelength": 3.5,
}
EMPTY_SVG_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "x", "^", "+", "s")
COLORS = ("#12456b", "#d9731a", "#2f9e6e", "#b04a8f", "#777777")  # of different darkness
MAX_MARKERS = 8  # on a line
LEGEND_COLUMNS = 3  # names in a line of the legend
LOG_SCALE_RATIO = 10  # largest ratio of maximum to median on a linear scale
MIN_LOG_SCALE_SECONDS = 1e-5  # smallest seconds on a logarithmic scale

SeriesStyle = dict[str, Any]
DrawSeries = Callable[["Axes", Sequence[PlotPoint], SeriesStyle], None]
PlotLabels = tuple[str, str, str]  # title, x label, y label


def plot_time_to_first_token(results: Sequence[BenchResult]) -> str:
    labels = "Time to the first token", "time to the first token, ms", "answers, %"
    return plot_distribution(labels, results,
                             lambda record: [] if (first := record.time_to_first_token) is None else [first], 1e3)


def plot_inter_token_times(results: Sequence[BenchResult]) -> str:
    labels = "Time between tokens", "time between tokens, ms", "pauses, %"
    return plot_distribution(labels, results, lambda record: record.inter_token_times, 1e3)


def plot_latency(results: Sequence[BenchResult]) -> str:
    labels = "Time to the end of an answer", "time to the end, s", "answers, %"
    return plot_distribution(labels, results, lambda record: [record.latency])


def plot_latency_by_tokens(results: Sequence[BenchResult]) -> str:
    labels = "Latency by tokens asked for", "tokens asked for", "time to the end, s"
    series = [[(record.ask.output_tokens, record.latency) for record in select_successful_in_window(result)]
              for result in results]
    return render_svg(labels, get_run_names(results), series, draw_dots_and_fit, start_y_axis_at_zero)


def plot_throughput(results: Sequence[BenchResult]) -> str:
    width = choose_bin_width(max(map(compute_run_duration, results)))
    labels = "Tokens over time", "time, s", f"tokens/s, means of {width:g} s"
    return plot_over_time(labels, results, [compute_token_rates(result.records, width) for result in results],
                          draw_steps)


def plot_requests_in_flight(results: Sequence[BenchResult]) -> str:
    labels = "Requests in flight", "time, s", "requests"
    return plot_over_time(labels, results, [count_requests_in_flight(result.records, compute_run_duration(result))
                                            for result in results], draw_integer_steps)


def plot_latency_over_time(results: Sequence[BenchResult]) -> str:
    labels = "Latency over time", "time at which it was sent, s", "time to the end, s"
    series = [[(record.sent, record.latency) for record in result.records if not record.error] for result in results]
    return plot_over_time(labels, results, series, draw_dots)


def get_run_names(results: Sequence[BenchResult]) -> list[str]:
    return [result.name for result in results]


def plot_distribution(labels: PlotLabels, results: Sequence[BenchResult],
                      get_seconds: Callable[[RequestRecord], list[float]], scale: float = 1.0) -> str:
    """Plot the cumulative distribution of times in percent, over the answers that count for latencies."""
    sorted_times = [sorted(scale * one for record in select_successful_in_window(result) for one in get_seconds(record))
                    for result in results]
    is_steep = any(ordered[-1] > LOG_SCALE_RATIO * percentile(ordered, 50) for ordered in sorted_times if ordered)
    series = [cumulative_distribution(ordered, scale * MIN_LOG_SCALE_SECONDS if is_steep else 0.0)
              for ordered in sorted_times]

    def finish(axes: "Axes") -> None:
        axes.set_yticks([0, 25, 50, 75, 90, 99])
        if is_steep:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
    return render_svg(labels, get_run_names(results), series, draw_line, finish)


def plot_over_time(labels: PlotLabels, results: Sequence[BenchResult], series: Sequence[Sequence[PlotPoint]],
                   draw: DrawSeries) -> str:
    """Plot time series of all requests, with the bounds of the windows."""
    def finish(axes: "Axes") -> None:
        for at in sorted({at for result in results for at in result.window}):
            axes.axvline(at, color="#777777", linestyle=":", linewidth=1)
        start_y_axis_at_zero(axes)
    return render_svg(labels, get_run_names(results), series, draw, finish)


def render_svg(labels: PlotLabels, names: Sequence[str], series: Sequence[Sequence[PlotPoint]], draw: DrawSeries,
               finish: Callable[["Axes"], None]) -> str:
    """Draw the points of each name; empty if there are none."""
    if not any(series):
        return ""
    title, x_label, y_label = labels
    matplotlib = import_matplotlib()
    with matplotlib.rc_context({**MATPLOTLIB_RC, "svg.hashsalt": title}):
        figure = matplotlib.figure.Figure(figsize=FIGURE_SIZE, layout="constrained")
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        for points, style in zip(series, iter_series_styles(names), strict=True):
            draw(axes, points, style)
        finish(axes)
        figure.legend(loc="outside upper right", ncols=LEGEND_COLUMNS)
        figure.savefig(page := StringIO(), format="svg", metadata=EMPTY_SVG_METADATA)
    return extract_svg_element(page.getvalue(), title)


def import_matplotlib() -> Any:
    """Return matplotlib without `pyplot`, which keeps all figures and looks for a display."""
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise ValueError(MISSING_PACKAGES_ERROR) from None
    return import_module("matplotlib")


def extract_svg_element(document: str, title: str) -> str:
    """Return the `<svg>` element of a document, without ids of groups: other plots in the page have the same."""
    svg = re.sub(r'<g id="[^"]*"', "<g", document[document.index("<svg"):])
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def iter_series_styles(names: Sequence[str]) -> Iterator[SeriesStyle]:
    """Yield the style of each run; only the first run of a name is in the legend."""
    style_indexes = {name: index for index, name in enumerate(dict.fromkeys(names))}
    for number, name in enumerate(names):
        style_index = style_indexes[name]
        yield {"color": COLORS[style_index % len(COLORS)], "linestyle": LINE_STYLES[style_index % len(LINE_STYLES)],
               "marker": MARKERS[style_index % len(MARKERS)], "label": name if name not in names[:number] else "_"}


def draw_line(axes: "Axes", points: Sequence[PlotPoint], style: SeriesStyle) -> None:
    axes.plot(*split_coordinates(points), **style, markevery=max(1, len(points) // MAX_MARKERS))


def draw_steps(axes: "Axes", points: Sequence[PlotPoint], style: SeriesStyle) -> None:
    draw_line(axes, points, style | {"drawstyle": "steps-post"})


def draw_integer_steps(axes: "Axes", points: Sequence[PlotPoint], style: SeriesStyle) -> None:
    """Plot steps of integers."""
    axes.locator_params(axis="y", integer=True)
    draw_steps(axes, points, style)


def draw_dots(axes: "Axes", points: Sequence[PlotPoint], style: SeriesStyle) -> None:
    axes.plot(*split_coordinates(downsample(points, MAX_DOTS)),
              **style | {"linestyle": "", "markersize": 3.5, "alpha": 0.6})


def draw_dots_and_fit(axes: "Axes", points: Sequence[PlotPoint], style: SeriesStyle) -> None:
    draw_dots(axes, points, style | {"label": "_"})
    draw_line(axes, fit_line(points), style)


def split_coordinates(points: Sequence[PlotPoint]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def start_y_axis_at_zero(axes: "Axes") -> None:
    axes.set_ylim(bottom=0)
