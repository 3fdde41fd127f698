"""Plots of a shape, from its summary: first those of the effective-batching study, then weft's own.

plot_style.py has their style.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.study.compared_policies import SWEPT_SETTINGS, format_policy_label
from benchmarks.study.plan import COMPAT_PART, SWEEP_PART, USERS_PART, WORKLOAD_PART
from benchmarks.study.plot_style import (
    draw_bands,
    draw_curve,
    draw_error_bars,
    draw_open_marker,
    get_band_ends,
    get_policy_style,
    label_axes,
    make_axes_logarithmic,
    make_bar_axis_logarithmic,
    make_figure,
    save_figure,
)
from benchmarks.study.request_timeline_plot import plot_timeline
from benchmarks.study.run_metrics import MIN_SERVED_SHARE, USERS_SLOWDOWN
from benchmarks.study.run_record_store import RunRecords
from benchmarks.study.study_summary import FiguresByLevel

FiguresMapping = Mapping[str, Any]
LABEL_OFFSETS = ((5, 4), (5, -11), (-5, 4), (-5, -11), (19, -3), (-19, -3), (5, 15), (5, -22))  # of labels from points
TOKENS_LABEL, LATENCY_LABEL, STUDY_PLOT_TITLE = ("# tokens requested", "request latency (s)",
                                                 "Latency vs Requested Tokens")


def draw_plots(study_folder: Path, shape: str, shape_figures: FiguresMapping,
               all_records: Sequence[RunRecords], caption: str) -> list[Path]:
    """Draw all plots and return their files, in display order. `caption` tells machine, date and commit."""
    return [save_figure(figure, study_folder / "plots" / f"{shape}-{name}.png", caption)
            for name, figure in iter_plots(shape, shape_figures, all_records)]


def iter_plots(shape: str, shape_figures: FiguresMapping,
               all_records: Sequence[RunRecords]) -> Iterator[tuple[str, Figure]]:
    """Yield the plots with their names."""
    if COMPAT_PART in shape_figures:
        policy_figures = shape_figures[COMPAT_PART]["policies"]
        yield "study-all", plot_mean_latency_by_tokens(policy_figures, list(policy_figures))
        for policy in policy_figures:
            yield f"study-{policy}", plot_mean_latency_by_tokens(policy_figures, [policy])
    for workload, policy_figures in shape_figures.get(WORKLOAD_PART, {}).items():
        title = f"{shape}, workload {workload}"
        yield f"{workload}-latency", plot_latency_bands_by_tokens(policy_figures, title)
        yield f"{workload}-fairness", plot_fairness(policy_figures, title)
        if workload_records := [run_records for run_records in all_records
                                if (run_records.run.part, run_records.run.workload) == (WORKLOAD_PART, workload)]:
            yield f"{workload}-timeline", plot_timeline(workload_records)
    if SWEEP_PART in shape_figures:
        yield "rates", plot_arrival_rates(shape_figures[SWEEP_PART], shape)
        yield "sweet-spot", plot_sweet_spot(shape_figures[SWEEP_PART]["policies"], shape)
    if USERS_PART in shape_figures:
        yield "users", plot_users(shape_figures[USERS_PART], shape)


def plot_mean_latency_by_tokens(policy_figures: FiguresMapping, policies: Sequence[str]) -> Figure:
    figure, [axes] = make_figure()
    for policy in policies:
        means = [(tokens, band.mean) for tokens, band in policy_figures[policy]["latency_by_tokens"].items()]
        draw_curve(axes, means, policy, list(policy_figures))
    label_axes(axes, TOKENS_LABEL, LATENCY_LABEL, STUDY_PLOT_TITLE)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def plot_latency_bands_by_tokens(policy_figures: FiguresMapping, title: str) -> Figure:
    figure, [axes] = make_figure(height=5.4)
    for policy, one in policy_figures.items():
        latencies = one["latency_by_range"]
        draw_bands(axes, latencies, policy, list(policy_figures))
        draw_curve(axes, [(tokens, band.mean) for tokens, band in latencies.items()], policy, list(policy_figures))
    label_axes(axes, "tokens asked for (means of ranges)", "request latency, waiting included (s)",
               f"{title}: mean over seeds, 95 % band")
    make_axes_logarithmic(axes, "y")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def plot_fairness(policy_figures: FiguresMapping, title: str) -> Figure:
    """Plot fairness, slowdown and longest wait; the last two differ up to a hundredfold and have logarithmic axes."""
    figure, (left, middle, right) = make_figure(1, 3, 10.5, 4.6)
    draw_bars(left, policy_figures, "jain", "fairness (1: all alike)", "Jain index of tokens/s")
    draw_bars(middle, policy_figures, "slowdown", "slowdown (1: as if alone)", "latency / latency alone")
    draw_bars(right, policy_figures, "longest_wait", "longest wait", "until the first token (s)")
    left.set_ylim(0, 1)
    for axes, figure_name in ((middle, "slowdown"), (right, "longest_wait")):
        make_bar_axis_logarithmic(axes, [one[figure_name].mean for one in policy_figures.values()])
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(f"{title}: mean over seeds, 95 % band")
    return figure


def draw_bars(axes: Axes, policy_figures: FiguresMapping, figure_name: str, title: str, unit: str) -> None:
    for index, (policy, one) in enumerate(policy_figures.items()):
        band, style = one[figure_name], get_policy_style(policy, list(policy_figures))
        axes.bar(index, band.mean, color=style.color, alpha=0.65, hatch=style.hatch, edgecolor="black", linewidth=0.8,
                 label=format_policy_label(policy))
        low, high = get_band_ends(band)
        axes.errorbar(index, band.mean, yerr=[[band.mean - low], [high - band.mean]], color="black", capsize=3,
                      linewidth=1)
    axes.set_xticks([])
    label_axes(axes, "policy", unit, title)
    axes.grid(visible=False, axis="x")


def plot_arrival_rates(sweep_figures: FiguresMapping, shape: str) -> Figure:
    """Plot the figures by arrival rate, without the swept settings, which have a plot of their own."""
    levels_by_policy: Mapping[str, FiguresByLevel] = sweep_figures["policies"]
    shown_levels = {policy: levels for policy, levels in levels_by_policy.items()
                    if policy.partition("-")[0] not in SWEPT_SETTINGS}
    figure, axes = make_figure(1, 3, 13.5, 5.0)
    for index, (figure_name, title) in enumerate((("tokens_per_second", "throughput (tokens/s)"),
                                                  ("latency_p50", "p50 of request latency (s)"),
                                                  ("latency_p95", "p95 of request latency (s)"))):
        for policy, levels in shown_levels.items():
            points = {one["requests_per_second"].mean: one[figure_name] for one in levels.values()}
            means = [(x, band.mean) for x, band in points.items()]
            draw_bands(axes[index], points, policy, list(shown_levels))
            draw_curve(axes[index], means, policy, list(shown_levels))
            if sweep_figures["saturation"][policy]["is_full"]:
                draw_open_marker(axes[index], means[-1], policy, list(shown_levels))
        label_axes(axes[index], "arrivals (requests/s)", title)
        make_axes_logarithmic(axes[index], "x", "y")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(
        f"{shape}: Poisson arrivals, mean over seeds, 95 % band\n"
        f"a large open marker: a policy is full and served less than {100 * MIN_SERVED_SHARE:.0f} % of what was "
        "asked for, at two rates in a row; other lines end at the highest rate tried")
    return figure


def plot_sweet_spot(levels_by_policy: Mapping[str, FiguresByLevel], shape: str) -> Figure:
    """Plot throughput against latency: up and to the left is better. Each line is a policy at rising rates."""
    figure, [axes] = make_figure(width=9.4, height=6.0)
    swept_policies = [policy for policy in levels_by_policy if policy.partition("-")[0] in SWEPT_SETTINGS]
    settings = [policy.partition("-")[0] for policy in swept_policies]
    offsets = cycle(LABEL_OFFSETS)
    for policy, levels in levels_by_policy.items():
        points = [(1e3 * one["per_token_p50"].mean, one["tokens_per_second"].mean) for one in levels.values()]
        draw_curve(axes, points, policy, list(levels_by_policy),
                   **({"linewidth": 0.7, "alpha": 0.8} if policy in swept_policies else {}))
        if policy in swept_policies and settings.count(policy.partition("-")[0]) > 1:  # a single value needs no label
            offset = next(offsets)
            axes.annotate(policy.partition("-")[2], points[-1], textcoords="offset points", xytext=offset, fontsize=9,
                          color=get_policy_style(policy, list(levels_by_policy)).color,
                          ha="left" if offset[0] > 0 else "right")
    label_axes(axes, "p50 of latency per token, waiting included (ms)", "throughput (tokens/s)",
               f"{shape}: throughput against latency at rising rates; up and left is better")
    make_axes_logarithmic(axes, "x")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_users(users_figures: FiguresMapping, shape: str) -> Figure:
    figure, [axes] = make_figure()
    for policy, levels in users_figures["policies"].items():
        bands = {level: one["by_alone"] for level, one in levels.items() if isfinite(one["by_alone"].mean)}
        draw_curve(axes, [(level, band.mean) for level, band in bands.items()], policy, list(users_figures["policies"]))
        draw_error_bars(axes, bands, get_policy_style(policy, list(users_figures["policies"])).color)
    axes.axhline(USERS_SLOWDOWN, color="black", linewidth=1, linestyle=(0, (6, 3)))
    axes.annotate("twice as long as alone", (1, USERS_SLOWDOWN), textcoords="offset points", xytext=(0, 4), fontsize=9)
    label_axes(axes, "users, each asking again once answered", "p50 of latency per token / that of one alone",
               f"{shape}: latency by number of users")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure
