"""Style of the study's plots.

Each policy has a line style, a marker and a hatch besides its color, so that they can be distinguished in grey.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.study.compared_policies import (
    DEFAULT_WINDOWS,
    STATIC_PREFIX,
    SWEPT_SETTINGS,
    format_policy_label,
    make_window_policies,
)
from benchmarks.study.statistics import ConfidenceBand

PLOT_DPI = 110
MIN_BAND_SHARE = 0.05  # of the mean: lower limit of a band, for logarithmic axes
DOTTED, DENSELY_DOTTED = (0, (1, 2)), (0, (1, 1))
LineDashes = str | tuple[int, tuple[int, ...]]


class PolicyStyle(NamedTuple):
    """Color, line, marker and hatch of a policy in plots."""

    color: str
    line: LineDashes
    marker: str
    hatch: str = ""


NO_BATCHING_STYLE, STATIC_STYLE = PolicyStyle("#606060", DOTTED, "s", "..."), PolicyStyle("#a63603", "--", "^", "//")
CONTINUOUS_STYLE = PolicyStyle("#08306b", "-", "o")
POLICY_STYLES = {"none": NO_BATCHING_STYLE, "nobatch": NO_BATCHING_STYLE, "static": STATIC_STYLE,
                 "pause": PolicyStyle("#6a51a3", "-.", "D", "xx"), "mixed": CONTINUOUS_STYLE,
                 "dynamic": CONTINUOUS_STYLE}
WINDOW_STYLES = PolicyStyle("#d94801", DENSELY_DOTTED, "v",
                            "\\\\"), PolicyStyle("#f16913", (0, (5, 1)), "<",
                                                 "--"), PolicyStyle("#fd8d3c", (0, (3, 1, 1, 1)), ">", "++")
SWEPT_STYLES = dict(zip(SWEPT_SETTINGS, (PolicyStyle("#41ab5d", "-", "P"), PolicyStyle("#2b8cbe", "--", "X"),
                                         PolicyStyle("#252525", ":", "*")), strict=True))


def get_policy_style(policy: str, policies: Sequence[str]) -> PolicyStyle:
    """Return the style of a policy in a plot of `policies`."""
    if policy in POLICY_STYLES:
        return POLICY_STYLES[policy]
    name = policy.partition("-")[0]
    return SWEPT_STYLES[name] if name in SWEPT_STYLES else assign_window_policy_styles(
        [one for one in policies if one.startswith(STATIC_PREFIX)])[policy]


def assign_window_policy_styles(policies: Sequence[str]) -> dict[str, PolicyStyle]:
    """Return the styles of policies with a window: fixed ones for the default windows, unused ones for others."""
    default_styles = dict(zip(make_window_policies(DEFAULT_WINDOWS), WINDOW_STYLES, strict=True))
    unused_styles = cycle([style for name, style in default_styles.items() if name not in policies] or WINDOW_STYLES)
    return {name: default_styles[name] if name in default_styles else next(unused_styles) for name in policies}


def make_figure(rows: int = 1, columns: int = 1, width: float = 7.2, height: float = 4.6) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def label_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def make_axes_logarithmic(axes: Axes, *directions: str) -> None:
    """Make axes logarithmic, with few plain tick labels. Lines determine the limits; bands may be cut off."""
    for direction in directions:
        set_log_scale(axes, direction)
        positive_values = [float(value) for line in axes.lines for value in getattr(line, f"get_{direction}data")()
                           if value > 0]
        if positive_values:
            getattr(axes, f"set_{direction}lim")(min(positive_values) / 1.4, max(positive_values) * 1.4)


def make_bar_axis_logarithmic(axes: Axes, heights: Sequence[float]) -> None:
    """Make the y axis of a bar plot logarithmic, with limits that leave the shortest bar visible."""
    set_log_scale(axes, "y")
    if positive_heights := [height for height in heights if height > 0]:
        axes.set_ylim(min(positive_heights) / 2, max(positive_heights) * 2)


def set_log_scale(axes: Axes, direction: str) -> None:
    getattr(axes, f"set_{direction}scale")("log")
    axis = axes.xaxis if direction == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_curve(axes: Axes, points: Sequence[tuple[float, float]], policy: str, policies: Sequence[str],
               **plot_options: Any) -> None:
    style = get_policy_style(policy, policies)
    axes.plot([x for x, _ in points], [y for _, y in points], color=style.color, linestyle=style.line,
              marker=style.marker, markersize=4.5, label=format_policy_label(policy),
              **{"linewidth": 1.6, **plot_options})


def draw_open_marker(axes: Axes, point: tuple[float, float], policy: str, policies: Sequence[str]) -> None:
    """Draw an open marker around a point of a curve."""
    style = get_policy_style(policy, policies)
    axes.plot(*point, color=style.color, linestyle="", marker=style.marker, markersize=12, markerfacecolor="none")


def draw_bands(axes: Axes, bands: Mapping[float, ConfidenceBand], policy: str, policies: Sequence[str]) -> None:
    """Fill the area between the ends of the bands, which are above 0 for logarithmic axes."""
    ends = [get_band_ends(band) for band in bands.values()]
    axes.fill_between(list(bands), [low for low, _ in ends], [high for _, high in ends],
                      color=get_policy_style(policy, policies).color, alpha=0.15, linewidth=0)


def get_band_ends(band: ConfidenceBand) -> tuple[float, float]:
    """Return the ends of a band; NaN, which is not drawn, if it has too few seeds: it would cover everything."""
    if band.half_width is None:
        return nan, nan
    return max(band.mean - band.half_width, MIN_BAND_SHARE * band.mean), band.mean + band.half_width


def draw_error_bars(axes: Axes, bands: Mapping[float, ConfidenceBand], color: str) -> None:
    """Draw the band of each point, where several seeds have given one."""
    for x, band in bands.items():
        low, high = get_band_ends(band)
        if high > low:
            axes.errorbar(x, band.mean, yerr=[[band.mean - low], [high - band.mean]], color=color, capsize=3,
                          linewidth=1)


def save_figure(figure: Figure, path: Path, caption: str) -> Path:
    """Save a figure with a small caption at its lower right."""
    figure.supxlabel(caption, x=0.995, ha="right", fontsize=7, color="#606060")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=PLOT_DPI, metadata={"Software": None})
    return path
