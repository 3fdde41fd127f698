"""Plots of a shape, from its summary: first those of the effective-batching study, then weft's own.

style.py has their style.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmarks.study.figures import Levels
from benchmarks.study.measures import KEPT_UP, USERS_SLOWDOWN
from benchmarks.study.plan import COMPAT, SWEEP, USERS, WORKLOAD
from benchmarks.study.policies import SWEPT, words
from benchmarks.study.records import Taken
from benchmarks.study.style import (
    curve,
    ends_of,
    logarithmic,
    logarithmic_bars,
    look_of,
    name_axes,
    open_marker,
    shade,
    sheet,
    write,
)
from benchmarks.study.timeline import timeline

Told = Mapping[str, Any]
OFFSETS = ((5, 4), (5, -11), (-5, 4), (-5, -11), (19, -3), (-19, -3), (5, 15), (5, -22))  # of labels from points
TOKENS, LATENCY, TITLE = "# tokens requested", "request latency (s)", "Latency vs Requested Tokens"


def draw(folder: Path, shape: str, told: Told, takens: Sequence[Taken]) -> list[Path]:
    """Draw all plots and return their files, in display order."""
    return list(drawn(folder / "plots", shape, told, takens))


def drawn(folder: Path, shape: str, told: Told, takens: Sequence[Taken]) -> Iterator[Path]:
    if COMPAT in told:
        each = told[COMPAT]["policies"]
        yield original(folder / f"{shape}-study-all.png", each, list(each))
        for policy in each:
            yield original(folder / f"{shape}-study-{policy}.png", each, [policy])
    for workload, each in told.get(WORKLOAD, {}).items():
        yield by_tokens(folder / f"{shape}-{workload}-latency.png", each, f"{shape}, workload {workload}")
        yield fairness(folder / f"{shape}-{workload}-fairness.png", each, f"{shape}, workload {workload}")
        if lines := [taken for taken in takens if (taken.run.part, taken.run.workload) == (WORKLOAD, workload)]:
            yield timeline(folder / f"{shape}-{workload}-timeline.png", lines)
    if SWEEP in told:
        yield rates(folder / f"{shape}-rates.png", told[SWEEP], shape)
        yield sweet_spot(folder / f"{shape}-sweet-spot.png", told[SWEEP]["policies"], shape)
    if USERS in told:
        yield users(folder / f"{shape}-users.png", told[USERS], shape)


def original(path: Path, each: Told, policies: Sequence[str]) -> Path:
    drawing, [axes] = sheet()
    for policy in policies:
        means = [(tokens, band.mean) for tokens, band in each[policy]["latency_by_tokens"].items()]
        curve(axes, means, policy, list(each))
    name_axes(axes, TOKENS, LATENCY, TITLE)
    axes.set_ylim(bottom=0)
    axes.legend()
    return write(drawing, path)


def by_tokens(path: Path, each: Told, title: str) -> Path:
    drawing, [axes] = sheet(height=5.4)
    for policy, one in each.items():
        latencies = one["latency_by_range"]
        shade(axes, latencies, policy, list(each))
        curve(axes, [(tokens, band.mean) for tokens, band in latencies.items()], policy, list(each))
    name_axes(axes, "tokens asked for (means of ranges)", "request latency, waiting included (s)",
              f"{title}: mean over seeds, 95 % band")
    logarithmic(axes, "y")
    drawing.legend(loc="outside lower center", ncols=3)
    return write(drawing, path)


def fairness(path: Path, each: Told, title: str) -> Path:
    """Plot fairness, slowdown and longest wait; the last two differ up to a hundredfold and have logarithmic axes."""
    drawing, (left, middle, right) = sheet(1, 3, 10.5, 4.6)
    bars(left, each, "jain", "fairness (1: all alike)", "Jain index of tokens/s")
    bars(middle, each, "slowdown", "slowdown (1: as if alone)", "latency / latency alone")
    bars(right, each, "longest_wait", "longest wait", "until the first token (s)")
    left.set_ylim(0, 1)
    for axes, figure in ((middle, "slowdown"), (right, "longest_wait")):
        logarithmic_bars(axes, [one[figure].mean for one in each.values()])
    drawing.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    drawing.suptitle(f"{title}: mean over seeds, 95 % band")
    return write(drawing, path)


def bars(axes: Axes, each: Told, figure: str, title: str, unit: str) -> None:
    for place, (policy, one) in enumerate(each.items()):
        band, look = one[figure], look_of(policy, list(each))
        axes.bar(place, band.mean, color=look.color, alpha=0.65, hatch=look.hatch, edgecolor="black", linewidth=0.8,
                 label=words(policy))
        low, high = ends_of(band)
        axes.errorbar(place, band.mean, yerr=[[band.mean - low], [high - band.mean]], color="black", capsize=3,
                      linewidth=1)
    axes.set_xticks([])
    name_axes(axes, "policy", unit, title)
    axes.grid(visible=False, axis="x")


def rates(path: Path, told: Told, shape: str) -> Path:
    """Plot the figures by arrival rate, without the swept settings, which have a plot of their own."""
    each: Mapping[str, Levels] = told["policies"]
    shown = {policy: levels for policy, levels in each.items() if policy.partition("-")[0] not in SWEPT}
    drawing, axes = sheet(1, 3, 13.5, 5.0)
    for place, (figure, title) in enumerate((("tokens_per_second", "throughput (tokens/s)"),
                                             ("latency_p50", "p50 of request latency (s)"),
                                             ("latency_p95", "p95 of request latency (s)"))):
        for policy, levels in shown.items():
            points = {one["requests_per_second"].mean: one[figure] for one in levels.values()}
            means = [(x, band.mean) for x, band in points.items()]
            shade(axes[place], points, policy, list(shown))
            curve(axes[place], means, policy, list(shown))
            if told["saturation"][policy]["is_full"]:
                open_marker(axes[place], means[-1], policy, list(shown))
        name_axes(axes[place], "arrivals (requests/s)", title)
        logarithmic(axes[place], "x", "y")
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    drawing.suptitle(f"{shape}: Poisson arrivals, mean over seeds, 95 % band\n"
                     f"a large open marker: a policy is full and served less than {100 * KEPT_UP:.0f} % of what was "
                     "asked for, at two rates in a row; other lines end at the highest rate tried")
    return write(drawing, path)


def sweet_spot(path: Path, each: Mapping[str, Levels], shape: str) -> Path:
    """Plot throughput against latency: up and to the left is better. Each line is a policy at rising rates."""
    drawing, [axes] = sheet(width=9.4, height=6.0)
    swept = [policy for policy in each if policy.partition("-")[0] in SWEPT]
    settings = [policy.partition("-")[0] for policy in swept]
    offsets = cycle(OFFSETS)
    for policy, levels in each.items():
        points = [(1e3 * one["per_token_p50"].mean, one["tokens_per_second"].mean) for one in levels.values()]
        curve(axes, points, policy, list(each), **({"linewidth": 0.7, "alpha": 0.8} if policy in swept else {}))
        if policy in swept and settings.count(policy.partition("-")[0]) > 1:  # a single value needs no label
            offset = next(offsets)
            axes.annotate(policy.partition("-")[2], points[-1], textcoords="offset points", xytext=offset, fontsize=9,
                          color=look_of(policy, list(each)).color, ha="left" if offset[0] > 0 else "right")
    name_axes(axes, "p50 of latency per token, waiting included (ms)", "throughput (tokens/s)",
              f"{shape}: throughput against latency at rising rates; up and left is better")
    logarithmic(axes, "x")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return write(drawing, path)


def users(path: Path, told: Told, shape: str) -> Path:
    drawing, [axes] = sheet()
    for policy, levels in told["policies"].items():
        points = [(level, one["by_alone"].mean) for level, one in levels.items()]
        curve(axes, [point for point in points if isfinite(point[1])], policy, list(told["policies"]))
    axes.axhline(USERS_SLOWDOWN, color="black", linewidth=1, linestyle=(0, (6, 3)))
    axes.annotate("twice as long as alone", (1, USERS_SLOWDOWN), textcoords="offset points", xytext=(0, 4), fontsize=9)
    name_axes(axes, "users, each asking again once answered", "p50 of latency per token / that of one alone",
              f"{shape}: latency by number of users")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return write(drawing, path)
