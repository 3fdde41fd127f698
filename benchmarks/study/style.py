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

from benchmarks.study.arithmetic import Band
from benchmarks.study.policies import STATIC, SWEPT, WINDOWS, windows, words

DPI = 110
LEAST = 0.05  # of the mean: lower limit of a band, for logarithmic axes
DOTTED, DENSE = (0, (1, 2)), (0, (1, 1))
Dashes = str | tuple[int, tuple[int, ...]]


class Look(NamedTuple):
    color: str
    line: Dashes
    marker: str
    hatch: str = ""


FIXED, STATIC_LOOK = Look("#606060", DOTTED, "s", "..."), Look("#a63603", "--", "^", "//")
OURS = Look("#08306b", "-", "o")
LOOKS = {"none": FIXED, "nobatch": FIXED, "static": STATIC_LOOK, "pause": Look("#6a51a3", "-.", "D", "xx"),
         "mixed": OURS, "dynamic": OURS}
WINDOWED = Look("#d94801", DENSE, "v", "\\\\"), Look("#f16913", (0, (5, 1)), "<", "--"), Look(
    "#fd8d3c", (0, (3, 1, 1, 1)), ">", "++")
SETTINGS = dict(zip(SWEPT, (Look("#41ab5d", "-", "P"), Look("#2b8cbe", "--", "X"), Look("#252525", ":", "*")),
                    strict=True))


def look_of(policy: str, policies: Sequence[str]) -> Look:
    """Return the style of a policy in a plot of `policies`."""
    if policy in LOOKS:
        return LOOKS[policy]
    name = policy.partition("-")[0]
    return SETTINGS[name] if name in SETTINGS else windowed([one for one in policies if one.startswith(STATIC)])[policy]


def windowed(policies: Sequence[str]) -> dict[str, Look]:
    """Return the styles of policies with a window: fixed ones for the default windows, unused ones for others."""
    usual = dict(zip(windows(WINDOWS), WINDOWED, strict=True))
    left = cycle([look for name, look in usual.items() if name not in policies] or WINDOWED)
    return {name: usual[name] if name in usual else next(left) for name in policies}


def sheet(rows: int = 1, columns: int = 1, width: float = 7.2, height: float = 4.6) -> tuple[Figure, list[Axes]]:
    drawn = Figure(figsize=(width, height), layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=False)
    return drawn, list(axes.flat)


def name_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def logarithmic(axes: Axes, *directions: str) -> None:
    """Make axes logarithmic, with few plain tick labels. Lines determine the limits; bands may be cut off."""
    for direction in directions:
        scaled(axes, direction)
        shown = [float(value) for line in axes.lines for value in getattr(line, f"get_{direction}data")() if value > 0]
        if shown:
            getattr(axes, f"set_{direction}lim")(min(shown) / 1.4, max(shown) * 1.4)


def logarithmic_bars(axes: Axes, heights: Sequence[float]) -> None:
    """Make the y axis of a bar plot logarithmic, with limits that leave the shortest bar visible."""
    scaled(axes, "y")
    if shown := [height for height in heights if height > 0]:
        axes.set_ylim(min(shown) / 2, max(shown) * 2)


def scaled(axes: Axes, direction: str) -> None:
    getattr(axes, f"set_{direction}scale")("log")
    axis = axes.xaxis if direction == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def curve(axes: Axes, points: Sequence[tuple[float, float]], policy: str, policies: Sequence[str],
          **more: Any) -> None:
    look = look_of(policy, policies)
    axes.plot([x for x, _ in points], [y for _, y in points], color=look.color, linestyle=look.line,
              marker=look.marker, markersize=4.5, label=words(policy), **{"linewidth": 1.6, **more})


def open_marker(axes: Axes, point: tuple[float, float], policy: str, policies: Sequence[str]) -> None:
    """Draw an open marker around a point of a curve."""
    look = look_of(policy, policies)
    axes.plot(*point, color=look.color, linestyle="", marker=look.marker, markersize=12, markerfacecolor="none")


def shade(axes: Axes, bands: Mapping[float, Band], policy: str, policies: Sequence[str]) -> None:
    """Fill the area between the ends of the bands, which are above 0 for logarithmic axes."""
    ends = [ends_of(band) for band in bands.values()]
    axes.fill_between(list(bands), [low for low, _ in ends], [high for _, high in ends],
                      color=look_of(policy, policies).color, alpha=0.15, linewidth=0)


def ends_of(band: Band) -> tuple[float, float]:
    """Return the ends of a band; NaN, which is not drawn, if it has too few seeds: it would cover everything."""
    if band.reach is None:
        return nan, nan
    return max(band.mean - band.reach, LEAST * band.mean), band.mean + band.reach


def write(drawn: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=DPI, metadata={"Software": None})
    return path
