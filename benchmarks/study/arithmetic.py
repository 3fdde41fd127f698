"""Means, regression lines and confidence bands of the study's figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan, sqrt
from statistics import NormalDist, fmean, linear_regression, stdev
from typing import NamedTuple

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
FEWEST_SHOWN = 3  # values with which a band is shown


class Line(NamedTuple):
    slope: float
    intercept: float
    correlation: float


@dataclass(frozen=True, slots=True)
class Band:
    """Mean of a figure over seeds, with its 95 % confidence interval.

    One seed has no interval; that of two is too wide to be of use, and is not shown."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Band":
        known = tuple(value for value in values if value == value)  # noqa: PLR0124 - only nan differs from itself
        if not known:
            return cls(nan, None, None, ())
        middle = fmean(known)
        if len(known) == 1:
            return cls(middle, None, None, known)
        reach = quantile(len(known) - 1) * stdev(known) / sqrt(len(known))
        return cls(middle, middle - reach, middle + reach, known)

    @property
    def reach(self) -> float | None:
        """Half of the interval's width; None if the interval is not shown."""
        return None if self.high is None or len(self.values) < FEWEST_SHOWN else self.high - self.mean


def quantile(degrees: int) -> float:
    """Return Student's t; beyond the table, the normal quantile with a correction, exact to 0.2 %."""
    if degrees <= len(QUANTILES):
        return QUANTILES[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def fitted(points: Mapping[float, float]) -> Line:
    """Return the least-squares line. All of it is NaN for fewer than two points, the correlation if y is constant."""
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
    """Return the x at which the lines cross; NaN if they are parallel."""
    steeper = one.slope - other.slope
    return (other.intercept - one.intercept) / steeper if steeper else nan


def interpolated(points: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between the points around x, which are in ascending order; extrapolate beyond the ends."""
    if len(points) == 1:
        return points[0][1]
    place = sum(x > place for place, _ in points[1:-1])
    (left, low), (right, high) = points[place], points[place + 1]
    return low + (x - left) * (high - low) / (right - left)


def reaches(points: Sequence[tuple[float, float]], level: float) -> float:
    """Return the first x at which y reaches the level, with points in ascending order; NaN if it never does."""
    if points and points[0][1] >= level:
        return points[0][0]
    for (left, low), (right, high) in pairwise(points):
        if high >= level:
            return left + (level - low) * (right - left) / (high - low)
    return nan


def mean_by(pairs: Iterable[tuple[float, float]]) -> dict[float, float]:
    """Return the mean value for each key, with keys in ascending order."""
    found: dict[float, list[float]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: fmean(found[key]) for key in sorted(found)}


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else nan
