"""Report of a study as Markdown: the summary tables, and the README of its folder."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.study.arithmetic import Band
from benchmarks.study.plan import COMPAT, SWEEP, USERS, WORKLOAD
from benchmarks.study.policies import words

Told = Mapping[str, Any]
Cells = Sequence[str]
COLUMNS = (  # of a run with a fixed set of requests
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


def figure(value: Band | float, digits: int) -> str:
    band = value if isinstance(value, Band) else Band(value, None, None, (value,))
    if not isfinite(band.mean):
        return "-"
    reach = f" ± {band.reach:.{digits}f}" if band.reach is not None else ""
    return f"{band.mean:.{digits}f}{reach}"


def grid(head: Cells, rows: Sequence[Cells]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def table(told: Told) -> str:
    """Return the tables of all shapes and parts."""
    return "\n\n".join(part for shape, one in told["shapes"].items() for part in of_shape(shape, one))


def of_shape(shape: str, told: Told) -> Iterator[str]:
    if COMPAT in told:
        yield f"### {shape}, as the original has it: no cache, eight at once\n\n{policies(told[COMPAT]['policies'])}"
        if "crossover" in told[COMPAT]:
            yield compat_words(told[COMPAT])
    for workload, each in told.get(WORKLOAD, {}).items():
        yield f"### {shape}, with a cache, workload {workload}\n\n{policies(each)}"
    if SWEEP in told:
        yield f"### {shape}, at rising rates\n\n{saturation(told[SWEEP])}"
    if "static_peak" in told.get(SWEEP, {}):
        yield static_words(told[SWEEP]["static_peak"])
    if USERS in told:
        yield f"### {shape}, users served at twice the latency per token of one alone\n\n{users(told[USERS])}"


def policies(each: Told) -> str:
    return grid(["policy", *(name for name, _, _ in COLUMNS)],
                [[words(policy), *(figure(one[name], digits) for _, name, digits in COLUMNS)]
                 for policy, one in each.items()])


def compat_words(told: Told) -> str:
    slower = (f"it is the slower one for requests above {figure(told['crossover'], 2)} of the largest"
              if told["crossover"] < 1 else "for no request is it the slower one")
    return ("Dynamic: latency grows in a straight line with tokens asked for, r = "
            f"{figure(told['continuous_latency_correlation'], 4)} through the means of all seeds and "
            f"{figure(told['continuous_latency_correlation_of_seeds'], 3)} in single ones; mean latency is "
            f"{figure(told['continuous_mean_latency_ratio'], 3)} of the others'; {slower}.")


def saturation(told: Told) -> str:
    rows = [[words(policy), figure(one["tokens_per_second"], 1), figure(one["by_none"], 2), f"{one['level']:g}",
             *(figure(told["policies"][policy][one["level"]][name], 2) for name in ("latency_p50", "latency_p95"))]
            for policy, one in told["saturation"].items()]
    return grid(["policy", "most tokens/s", "by no batching", "arrivals by what no batching serves", "p50 s there",
                 "p95 s there"], rows)


def static_words(told: Told) -> str:
    return (f"The best static groups ({words(told['policy'])}) serve {figure(told['tokens_per_second'], 1)} tokens/s "
            f"at a p50 of {figure(told['latency_p50'], 2)} s, with arrivals of {told['level']:g} times what no "
            f"batching serves; {words(told['continuous_policy'])} serves "
            f"{figure(told['continuous_tokens_per_second'], 1)} at {figure(told['continuous_latency_p50'], 2)} s, "
            f"{figure(told['latency_ratio'], 2)} of that, with arrivals of {told['continuous_level']:g} times.")


def failures(told: Mapping[str, int]) -> str:
    """Return a sentence on failed requests: they count for no latency, so a policy that rejects would look fast."""
    return "" if not told else "Failed requests, which are left out of all latencies: " + ", ".join(
        f"{count} in {name}" for name, count in told.items()) + "."


def users(told: Told) -> str:
    return grid(["policy", "users", "by no batching"],
                [[words(policy), figure(band, 1), figure(told["by_none"][policy], 1)]
                 for policy, band in told["at_twice"].items()])


def with_versions(made: Told) -> str:
    return ", ".join(f"{name} {number}" for name, number in made["versions"].items())


def with_stolen(made: Sequence[Told]) -> str:
    """Return a sentence on the steal time of a virtual machine during the runs; empty if there was none."""
    shares = [100 * one.get("stolen", 0.0) for one in made]
    return (f"While runs were measured, others had {fmean(shares):.1f} % of this virtual machine's processors; in the "
            f"worst run {max(shares):.1f} %.") if any(shares) else ""


def sources(made: Sequence[Told]) -> list[Told]:
    """Return date, hardware, versions and command, each combination once."""
    found = [{name: one[name] for name in ("date", "hardware", "versions", "command")} for one in made]
    return [one for number, one in enumerate(found) if one not in found[:number]]


def page(told: Told, made: Sequence[Told], plots: Sequence[Path], folder: Path) -> str:
    """Return README.md of the folder, whose records may be from several commands."""
    where = [f"- {one['date']}, `{one['command']}`, on {one['hardware']}, with {with_versions(one)}"
             for one in sources(made)]
    studied = any(COMPAT in one for one in told["shapes"].values())
    head = "\n".join([
        f"# The batching study, {max(one['date'] for one in made)}", "", *where, "",
        "Raw records are under `raw/`, the figures of the tables in `summary.json`"
        + (", and what the server with the original's routes wrote under `csv/`." if studied else "."),
        *filter(None, [with_stolen(made), failures(told["failed"])])])
    shown = "\n\n".join(f"![{path.stem}]({path.relative_to(folder)})" for path in plots)
    return "\n\n".join([head, NOTES, "## Tables", table(told), "## Plots", shown]) + "\n"
