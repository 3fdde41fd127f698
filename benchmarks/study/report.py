"""Report of a study as Markdown: the summary tables, and the README of its folder."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.study.compared_policies import format_policy_label
from benchmarks.study.plan import COMPAT_PART, SWEEP_PART, USERS_PART, WORKLOAD_PART
from benchmarks.study.statistics import ConfidenceBand

FiguresMapping = Mapping[str, Any]
TableCells = Sequence[str]
POLICY_COLUMNS = (  # of a run with a fixed set of requests
    ("mean latency s", "mean_latency", 2), ("p50 s", "latency_p50", 2), ("p95 s", "latency_p95", 2),
    ("p99 s", "latency_p99", 2), ("s per token", "latency_per_token", 3), ("tokens/s", "tokens_per_second", 1),
    ("original's throughput", "study_throughput", 2), ("slope s/token", "slope", 4), ("r", "correlation", 3),
    ("Jain", "jain", 3), ("slowdown", "slowdown", 1), ("longest wait s", "longest_wait", 2))
NOTES = """\
Figures are means over seeds, ± half of the 95 % band. The original is the effective-batching study. `mean latency` is
over numbers of tokens asked for, as there, and so are slope and r, of a line through these means. `original's
throughput` is its formula, tokens divided by request-seconds; `tokens/s` uses wall-clock time. In the original's
mode latency is what the server's clock says, which begins when a request is heard, eight at most at once; elsewhere it
counts from when a request was due. Slowdown is latency divided by what as many tokens take alone. At rising rates
throughput is that of the second half of the arrivals, when batches are full."""


def format_band(value: ConfidenceBand | float, digits: int) -> str:
    band = value if isinstance(value, ConfidenceBand) else ConfidenceBand(value, None, None, (value,))
    if not isfinite(band.mean):
        return "-"
    half_width = f" ± {band.half_width:.{digits}f}" if band.half_width is not None else ""
    return f"{band.mean:.{digits}f}{half_width}"


def format_markdown_table(head: TableCells, rows: Sequence[TableCells]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def format_all_tables(study_figures: FiguresMapping) -> str:
    """Return the tables of all shapes and parts."""
    return "\n\n".join(part for shape, one in study_figures["shapes"].items()
                       for part in iter_model_sections(shape, one))


def iter_model_sections(shape: str, shape_figures: FiguresMapping) -> Iterator[str]:
    if COMPAT_PART in shape_figures:
        yield (f"### {shape}, as the original has it: no cache, eight at "
               f"once\n\n{format_policy_table(shape_figures[COMPAT_PART]['policies'])}")
        if "crossover" in shape_figures[COMPAT_PART]:
            yield describe_study_reproduction(shape_figures[COMPAT_PART])
    for workload, policy_figures in shape_figures.get(WORKLOAD_PART, {}).items():
        yield f"### {shape}, with a cache, workload {workload}\n\n{format_policy_table(policy_figures)}"
    if SWEEP_PART in shape_figures:
        yield f"### {shape}, at rising rates\n\n{format_saturation_table(shape_figures[SWEEP_PART])}"
    if "static_peak" in shape_figures.get(SWEEP_PART, {}):
        yield describe_static_peak(shape_figures[SWEEP_PART]["static_peak"])
    if USERS_PART in shape_figures:
        yield (f"### {shape}, users served at twice the latency per token of one "
               f"alone\n\n{format_users_table(shape_figures[USERS_PART])}")


def format_policy_table(policy_figures: FiguresMapping) -> str:
    return format_markdown_table(["policy", *(name for name, _, _ in POLICY_COLUMNS)],
                                 [[format_policy_label(policy),
                                   *(format_band(one[name], digits) for _, name, digits in POLICY_COLUMNS)]
                                  for policy, one in policy_figures.items()])


def describe_study_reproduction(compat_figures: FiguresMapping) -> str:
    crossover_clause = (
        f"it is the slower one for requests above {format_band(compat_figures['crossover'], 2)} of the largest"
                        if compat_figures["crossover"] < 1 else "for no request is it the slower one")
    return ("Dynamic: latency grows in a straight line with tokens asked for, r "
            "= " f"{format_band(compat_figures['continuous_latency_correlation'], 4)} through the means of all seeds "
            f"and " f"{format_band(compat_figures['continuous_latency_correlation_of_seeds'], 3)} in single ones; "
            f"mean latency is " f"{format_band(compat_figures['continuous_mean_latency_ratio'], 3)} of the others'; "
            f"{crossover_clause}.")


def format_saturation_table(sweep_figures: FiguresMapping) -> str:
    rows = [[format_policy_label(policy), format_band(one["tokens_per_second"], 1), format_band(one["by_none"], 2),
             f"{one['level']:g}", *(format_band(sweep_figures["policies"][policy][one["level"]][name], 2)
                                    for name in ("latency_p50", "latency_p95"))]
            for policy, one in sweep_figures["saturation"].items()]
    return format_markdown_table(["policy", "most tokens/s", "by no batching", "arrivals by what no batching serves",
                                  "p50 s there", "p95 s there"], rows)


def describe_static_peak(static_peak: FiguresMapping) -> str:
    return (f"The best static groups ({format_policy_label(static_peak['policy'])}) serve "
            f"{format_band(static_peak['tokens_per_second'], 1)} tokens/s "
            f"at a p50 of {format_band(static_peak['latency_p50'], 2)} s, with arrivals of {static_peak['level']:g} "
            f"times what no "
            f"batching serves; {format_policy_label(static_peak['continuous_policy'])} serves "
            f"{format_band(static_peak['continuous_tokens_per_second'], 1)} at "
            f"{format_band(static_peak['continuous_latency_p50'], 2)} s, "
            f"{format_band(static_peak['latency_ratio'], 2)} of that, with arrivals of "
            f"{static_peak['continuous_level']:g} times.")


def describe_failed_requests(failed_by_run: Mapping[str, int]) -> str:
    """Return a sentence on failed requests: they count for no latency, so a policy that rejects would look fast."""
    return "" if not failed_by_run else "Failed requests, which are left out of all latencies: " + ", ".join(
        f"{count} in {name}" for name, count in failed_by_run.items()) + "."


def format_users_table(users_figures: FiguresMapping) -> str:
    return format_markdown_table(["policy", "users", "by no batching"],
                                 [[format_policy_label(policy), format_band(band, 1),
                                   format_band(users_figures["by_none"][policy], 1)]
                                  for policy, band in users_figures["at_twice"].items()])


def format_versions(metadata: FiguresMapping) -> str:
    return ", ".join(f"{name} {number}" for name, number in metadata["versions"].items())


def format_plot_caption(metadata_of_runs: Sequence[FiguresMapping]) -> str:
    """Return machines, days and commits of the runs that a plot shows."""
    values = ({one["hardware"] for one in metadata_of_runs}, {one["date"] for one in metadata_of_runs},
              {f"weft {one['versions']['commit']}" for one in metadata_of_runs if "commit" in one["versions"]})
    return " · ".join(", ".join(sorted(names)) for names in values if names)


def describe_steal_time(metadata_of_runs: Sequence[FiguresMapping]) -> str:
    """Return a sentence on the steal time of a virtual machine during the runs; empty if there was none."""
    shares = [100 * one.get("stolen", 0.0) for one in metadata_of_runs]
    return (f"While runs were measured, others had {fmean(shares):.1f} % of this virtual machine's processors; in the "
            f"worst run {max(shares):.1f} %.") if any(shares) else ""


def list_distinct_metadata(metadata_of_runs: Sequence[FiguresMapping]) -> list[FiguresMapping]:
    """Return date, hardware, versions and command, each combination once."""
    selected = [{name: one[name] for name in ("date", "hardware", "versions", "command")} for one in metadata_of_runs]
    return [one for number, one in enumerate(selected) if one not in selected[:number]]


def format_readme(study_figures: FiguresMapping, metadata_of_runs: Sequence[FiguresMapping], plot_paths: Sequence[Path],
                  folder: Path) -> str:
    """Return README.md of the folder, whose records may be from several commands."""
    source_lines = [f"- {one['date']}, `{one['command']}`, on {one['hardware']}, with {format_versions(one)}"
                    for one in list_distinct_metadata(metadata_of_runs)]
    has_compat = any(COMPAT_PART in one for one in study_figures["shapes"].values())
    head = "\n".join([
        f"# The batching study, {max(one['date'] for one in metadata_of_runs)}", "", *source_lines, "",
        "Raw records are under `raw/`, the figures of the tables in `summary.json`"
        + (", and what the server with the original's routes wrote under `csv/`." if has_compat else "."),
        *filter(None, [describe_steal_time(metadata_of_runs), describe_failed_requests(study_figures["failed"])])])
    images = "\n\n".join(f"![{path.stem}]({path.relative_to(folder)})" for path in plot_paths)
    return "\n\n".join([head, NOTES, "## Tables", format_all_tables(study_figures), "## Plots", images]) + "\n"
