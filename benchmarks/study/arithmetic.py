"""Means, lines and bands: the arithmetic that the study's figures share. Knows nothing of requests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan, sqrt
from statistics import NormalDist, fmean, linear_regression, stdev
from typing import NamedTuple

# Student's t for 95 % on both sides, by degrees of freedom from 1.
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
FEWEST_SHOWN = 3  # values of a band


class Line(NamedTuple):
    slope: float
    intercept: float
    correlation: float


@dataclass(frozen=True, slots=True)
class Band:
    """A figure that every seed gives: its mean, and where the true one lies with 95 %. One seed has no band, and that
    of two covers everything and is not shown."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Band":
        known = tuple(value for value in values if value == value)  # noqa: PLR0124 - nan is the one that is not
        if not known:
            return cls(nan, None, None, ())
        middle = fmean(known)
        if len(known) == 1:
            return cls(middle, None, None, known)
        reach = quantile(len(known) - 1) * stdev(known) / sqrt(len(known))
        return cls(middle, middle - reach, middle + reach, known)

    @property
    def reach(self) -> float | None:
        """Half of what is shown of it."""
        return None if self.high is None or len(self.values) < FEWEST_SHOWN else self.high - self.mean


def quantile(degrees: int) -> float:
    """Beyond the table the normal one with a correction, which is right to 0.2 %."""
    if degrees <= len(QUANTILES):
        return QUANTILES[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def fitted(points: Mapping[float, float]) -> Line:
    """The line of least squares. A line needs two places; what is flat correlates with nothing."""
    xs, ys = list(points), list(points.values())
    if len(xs) < 2:
        return Line(nan, nan, nan)
    slope, intercept = linear_regression(xs, ys)
    spread = sqrt(scatter(xs) * scatter(ys))
    return Line(slope, intercept, slope * scatter(xs) / spread if spread else nan)


def scatter(values: Sequence[float]) -> float:
    middle = fmean(values)
    return sum((value - middle) ** 2 for value in values)


def crossing(one: Line, other: Line) -> float:
    """Where they meet; not a number if they never do."""
    steeper = one.slope - other.slope
    return (other.intercept - one.intercept) / steeper if steeper else nan


def interpolated(points: Sequence[tuple[float, float]], x: float) -> float:
    """Between the two places around x, in rising order; beyond the ends the nearest piece goes on."""
    if len(points) == 1:
        return points[0][1]
    place = sum(x > place for place, _ in points[1:-1])
    (left, low), (right, high) = points[place], points[place + 1]
    return low + (x - left) * (high - low) / (right - left)


def reaches(points: Sequence[tuple[float, float]], level: float) -> float:
    """The first place, in rising order, at which the level is reached; not a number if it never is."""
    if points and points[0][1] >= level:
        return points[0][0]
    for (left, low), (right, high) in pairwise(points):
        if high >= level:
            return left + (level - low) * (right - left) / (high - low)
    return nan


def mean_by(pairs: Iterable[tuple[float, float]]) -> dict[float, float]:
    """The mean of the second for each first, the firsts in rising order."""
    found: dict[float, list[float]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: fmean(found[key]) for key in sorted(found)}


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else nan
