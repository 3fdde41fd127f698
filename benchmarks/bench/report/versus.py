"""Comparison of two servers, or two configurations of one, measured in turns: the ratios of their figures.

The two runs of a turn follow each other directly, so that what slows the machine slows both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median
from typing import Any

from benchmarks.bench.report.summary import SHARES, Spread, Summary
from router.simulation.report import aligned

SPREADS: dict[str, Callable[[Summary], Spread]] = {
    "first token": lambda summary: summary.first_token,
    "between tokens": lambda summary: summary.between_tokens,
    "per token": lambda summary: summary.per_token,
    "end to end": lambda summary: summary.latency,
}
RATES: dict[str, Callable[[Summary], float]] = {
    "tokens/s": lambda summary: summary.tokens_per_second,
    "requests/s": lambda summary: summary.requests_per_second,
    "goodput, requests/s": lambda summary: summary.goodput,
}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratios B / A of one figure, for each turn."""

    name: str
    better: str  # "higher" or "lower"
    turns: tuple[float, ...]  # of the turns in which both have the figure
    turns_in_all: int

    @property
    def median(self) -> float:
        return median(self.turns)

    @property
    def least(self) -> float:
        return min(self.turns)

    @property
    def most(self) -> float:
        return max(self.turns)

    def figures(self) -> dict[str, Any]:
        return {"name": self.name, "better": self.better, "median": self.median, "least": self.least,
                "most": self.most, "turns": self.turns, "turns_in_all": self.turns_in_all}


def compared(pairs: Sequence[tuple[Summary, Summary]]) -> list[Ratio]:
    """Return the ratios of every figure that both runs of at least one turn have."""
    ratios = [ratio(name, "higher", figure, pairs) for name, figure in RATES.items()]
    for name, spread in SPREADS.items():
        ratios += [ratio(f"{name} p{share}", "lower", percentile_of(spread, share), pairs) for share in SHARES]
    return [found for found in ratios if found.turns]


def percentile_of(spread: Callable[[Summary], Spread], share: int) -> Callable[[Summary], float]:
    return lambda summary: float(getattr(spread(summary), f"p{share}"))


def ratio(name: str, better: str, figure: Callable[[Summary], float],
          pairs: Sequence[tuple[Summary, Summary]]) -> Ratio:
    turns = (quotient(figure(second), figure(first)) for first, second in pairs)
    return Ratio(name, better, tuple(filter(isfinite, turns)), len(pairs))


def quotient(second: float, first: float) -> float:
    return second / first if first else nan


def ratio_rows(ratios: Sequence[Ratio], names: tuple[str, str] = ("A", "B")) -> list[list[str]]:
    heading = [f"{names[1]} / {names[0]}", "median", "least to most", "turns", "better is"]
    return [heading, *([one.name, times(one.median), f"({times(one.least)} to {times(one.most)})", counted(one),
                        one.better] for one in ratios)]


def counted(ratio: Ratio) -> str:
    there, in_all = len(ratio.turns), ratio.turns_in_all
    return f"{there}" if there == in_all else f"{there} of {in_all}"


def times(factor: float) -> str:
    return f"{factor:.2f}" if factor >= 0.1 else f"{factor:.2g}"


def ratio_table(ratios: Sequence[Ratio], names: tuple[str, str] = ("A", "B")) -> str:
    return aligned(ratio_rows(ratios, names))
