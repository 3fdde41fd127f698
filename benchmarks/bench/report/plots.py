"""Plots of runs as SVG to embed in a page; the same records give the same bytes.

Runs of one name share a color, a line and a marker, and can be distinguished in grey. A plot with nothing to show, such
as the time to first token of answers that were not streamed, is an empty string.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

from benchmarks.bench.load.record import Record
from benchmarks.bench.report.curves import (
    MOST_DOTS,
    Point,
    bin_width,
    counted,
    fitted,
    lasted,
    shares,
    thinned,
    token_rates,
    under_way,
)
from benchmarks.bench.report.result import Result
from router.simulation.report import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDS = "the HTML report needs packages that are not installed: pip install 'weft[bench]'"
SIZE = 7.2, 3.4  # inches
LOOK = {
    "font.size": 10, "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"], "svg.fonttype": "none",
    "text.parse_math": False, "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.handlelength": 3.5,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "x", "^", "+", "s")
COLOURS = ("#12456b", "#d9731a", "#2f9e6e", "#b04a8f", "#777777")  # of different darkness
MOST_MARKERS = 8  # on a line
MOST_BESIDE = 3  # names in a line of the legend
STEEP = 10  # largest ratio of maximum to median on a linear scale
LEAST = 1e-5  # smallest seconds on a logarithmic scale

Style = dict[str, Any]
Draw = Callable[["Axes", Sequence[Point], Style], None]
Labels = tuple[str, str, str]  # title, x label, y label


def first_tokens(results: Sequence[Result]) -> str:
    labels = "Time to the first token", "time to the first token, ms", "answers, %"
    return distribution(labels, results, lambda record: [] if (first := record.first_token) is None else [first], 1e3)


def gaps(results: Sequence[Result]) -> str:
    labels = "Time between tokens", "time between tokens, ms", "pauses, %"
    return distribution(labels, results, lambda record: record.gaps, 1e3)


def latencies(results: Sequence[Result]) -> str:
    labels = "Time to the end of an answer", "time to the end, s", "answers, %"
    return distribution(labels, results, lambda record: [record.latency])


def latency_by_tokens(results: Sequence[Result]) -> str:
    labels = "Latency by tokens asked for", "tokens asked for", "time to the end, s"
    series = [[(record.ask.output_tokens, record.latency) for record in counted(result)] for result in results]
    return picture(labels, names(results), series, dots_and_line, from_zero)


def throughput(results: Sequence[Result]) -> str:
    width = bin_width(max(map(lasted, results)))
    labels = "Tokens over time", "time, s", f"tokens/s, means of {width:g} s"
    return over_time(labels, results, [token_rates(result.records, width) for result in results], steps)


def in_flight(results: Sequence[Result]) -> str:
    labels = "Requests in flight", "time, s", "requests"
    return over_time(labels, results, [under_way(result.records, lasted(result)) for result in results], whole_steps)


def latency_over_time(results: Sequence[Result]) -> str:
    labels = "Latency over time", "time at which it was sent, s", "time to the end, s"
    series = [[(record.sent, record.latency) for record in result.records if not record.error] for result in results]
    return over_time(labels, results, series, dots)


def names(results: Sequence[Result]) -> list[str]:
    return [result.name for result in results]


def distribution(labels: Labels, results: Sequence[Result], seconds: Callable[[Record], list[float]],
                 scale: float = 1.0) -> str:
    """Plot the cumulative distribution of times in percent, over the answers that count for latencies."""
    found = [sorted(scale * one for record in counted(result) for one in seconds(record)) for result in results]
    is_steep = any(ordered[-1] > STEEP * percentile(ordered, 50) for ordered in found if ordered)
    series = [shares(ordered, scale * LEAST if is_steep else 0.0) for ordered in found]

    def finish(axes: "Axes") -> None:
        axes.set_yticks([0, 25, 50, 75, 90, 99])
        if is_steep:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
    return picture(labels, names(results), series, line, finish)


def over_time(labels: Labels, results: Sequence[Result], series: Sequence[Sequence[Point]], draw: Draw) -> str:
    """Plot time series of all requests, with the bounds of the windows."""
    def finish(axes: "Axes") -> None:
        for at in sorted({at for result in results for at in result.window}):
            axes.axvline(at, color="#777777", linestyle=":", linewidth=1)
        from_zero(axes)
    return picture(labels, names(results), series, draw, finish)


def picture(labels: Labels, names: Sequence[str], series: Sequence[Sequence[Point]], draw: Draw,
            finish: Callable[["Axes"], None]) -> str:
    """Draw the points of each name; empty if there are none."""
    if not any(series):
        return ""
    title, right, up = labels
    matplotlib = drawing()
    with matplotlib.rc_context({**LOOK, "svg.hashsalt": title}):
        figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot(xlabel=right, ylabel=up)
        for points, style in zip(series, styles(names), strict=True):
            draw(axes, points, style)
        finish(axes)
        figure.legend(loc="outside upper right", ncols=MOST_BESIDE)
        figure.savefig(page := StringIO(), format="svg", metadata=NO_METADATA)
    return embedded(page.getvalue(), title)


def drawing() -> Any:
    """Return matplotlib without `pyplot`, which keeps all figures and looks for a display."""
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise ValueError(NEEDS) from None
    return import_module("matplotlib")


def embedded(document: str, title: str) -> str:
    """Return the `<svg>` element of a document, without ids of groups: other plots in the page have the same."""
    bare = re.sub(r'<g id="[^"]*"', "<g", document[document.index("<svg"):])
    return bare.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def styles(names: Sequence[str]) -> Iterator[Style]:
    """Yield the style of each run; only the first run of a name is in the legend."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    for number, name in enumerate(names):
        place = places[name]
        yield {"color": COLOURS[place % len(COLOURS)], "linestyle": LINES[place % len(LINES)],
               "marker": MARKERS[place % len(MARKERS)], "label": name if name not in names[:number] else "_"}


def line(axes: "Axes", points: Sequence[Point], style: Style) -> None:
    axes.plot(*columns(points), **style, markevery=max(1, len(points) // MOST_MARKERS))


def steps(axes: "Axes", points: Sequence[Point], style: Style) -> None:
    line(axes, points, style | {"drawstyle": "steps-post"})


def whole_steps(axes: "Axes", points: Sequence[Point], style: Style) -> None:
    """Plot steps of integers."""
    axes.locator_params(axis="y", integer=True)
    steps(axes, points, style)


def dots(axes: "Axes", points: Sequence[Point], style: Style) -> None:
    axes.plot(*columns(thinned(points, MOST_DOTS)), **style | {"linestyle": "", "markersize": 3.5, "alpha": 0.6})


def dots_and_line(axes: "Axes", points: Sequence[Point], style: Style) -> None:
    dots(axes, points, style | {"label": "_"})
    line(axes, fitted(points), style)


def columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def from_zero(axes: "Axes") -> None:
    axes.set_ylim(bottom=0)
