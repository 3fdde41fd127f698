"""Comparison of two servers, or two configurations of one, measured in turns: the ratios of their figures.

The two runs of a turn follow each other directly, so that what slows the machine slows both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median
from typing import Any

from benchmarks.bench.report.summary import PERCENTILES, DistributionStats, RunSummary
from router.simulation.run_stats import align_columns

LATENCY_FIGURES: dict[str, Callable[[RunSummary], DistributionStats]] = {
    "first token (TTFT)": lambda summary: summary.first_token,
    "between tokens (ITL)": lambda summary: summary.between_tokens,
    "mean per token (TPOT)": lambda summary: summary.per_token,
    "end to end": lambda summary: summary.latency,
}
RATE_FIGURES: dict[str, Callable[[RunSummary], float]] = {
    "tokens/s": lambda summary: summary.tokens_per_second,
    "requests/s": lambda summary: summary.requests_per_second,
    "goodput, requests/s": lambda summary: summary.goodput,
}


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """Ratios B / A of one figure, for each turn."""

    name: str
    better_when: str  # "higher" or "lower"
    ratios_by_turn: tuple[float, ...]  # of the turns in which both have the figure
    num_turns: int

    @property
    def median(self) -> float:
        return median(self.ratios_by_turn)

    @property
    def least(self) -> float:
        return min(self.ratios_by_turn)

    @property
    def most(self) -> float:
        return max(self.ratios_by_turn)

    def to_json_dict(self) -> dict[str, Any]:
        return {"name": self.name, "better": self.better_when, "median": self.median, "least": self.least,
                "most": self.most, "turns": self.ratios_by_turn, "turns_in_all": self.num_turns}


def compare_metrics(summary_pairs: Sequence[tuple[RunSummary, RunSummary]]) -> list[MetricComparison]:
    """Return the ratios of every figure that both runs of at least one turn have."""
    ratios = [compare_metric(name, "higher", figure, summary_pairs) for name, figure in RATE_FIGURES.items()]
    for name, spread in LATENCY_FIGURES.items():
        ratios += [compare_metric(f"{name} p{share}", "lower", make_percentile_getter(spread, share),
                                  summary_pairs) for share in PERCENTILES]
    return [ratio for ratio in ratios if ratio.ratios_by_turn]


def make_percentile_getter(get_stats: Callable[[RunSummary], DistributionStats],
                           percent: int) -> Callable[[RunSummary], float]:
    return lambda summary: float(getattr(get_stats(summary), f"p{percent}"))


def compare_metric(name: str, better_when: str, get_figure: Callable[[RunSummary], float],
                   summary_pairs: Sequence[tuple[RunSummary, RunSummary]]) -> MetricComparison:
    quotients = (divide_or_nan(get_figure(second), get_figure(first)) for first, second in summary_pairs)
    return MetricComparison(name, better_when, tuple(filter(isfinite, quotients)), len(summary_pairs))


def divide_or_nan(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else nan


def make_ratio_rows(ratios: Sequence[MetricComparison], run_names: tuple[str, str] = ("A", "B")) -> list[list[str]]:
    heading = [f"{run_names[1]} / {run_names[0]}", "median", "least to most", "turns", "better is"]
    return [heading,
            *([one.name, format_factor(one.median), f"({format_factor(one.least)} to {format_factor(one.most)})",
               format_turn_count(one), one.better_when] for one in ratios)]


def format_turn_count(ratio: MetricComparison) -> str:
    num_ratios, num_turns = len(ratio.ratios_by_turn), ratio.num_turns
    return f"{num_ratios}" if num_ratios == num_turns else f"{num_ratios} of {num_turns}"


def format_factor(factor: float) -> str:
    return f"{factor:.2f}" if factor >= 0.1 else f"{factor:.2g}"


def format_ratio_table(ratios: Sequence[MetricComparison], run_names: tuple[str, str] = ("A", "B")) -> str:
    return align_columns(make_ratio_rows(ratios, run_names))
