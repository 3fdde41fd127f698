"""Means, regression lines and confidence bands of the study's figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan, sqrt
from statistics import NormalDist, fmean, linear_regression, stdev
from typing import NamedTuple

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
STUDENT_T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MIN_VALUES_FOR_BAND = 3  # values with which a band is shown


class RegressionLine(NamedTuple):
    """Least-squares line through points, with their correlation."""

    slope: float
    intercept: float
    correlation: float


@dataclass(frozen=True, slots=True)
class ConfidenceBand:
    """Mean of a figure over seeds, with its 95 % confidence interval.

    One seed has no interval; that of two is too wide to be of use, and is not shown."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @classmethod
    def from_values(cls, values: Iterable[float]) -> "ConfidenceBand":
        known_values = tuple(value for value in values if value == value)  # noqa: PLR0124 - only nan differs from itself
        if not known_values:
            return cls(nan, None, None, ())
        mean_value = fmean(known_values)
        if len(known_values) == 1:
            return cls(mean_value, None, None, known_values)
        half_width = student_t_quantile(len(known_values) - 1) * stdev(known_values) / sqrt(len(known_values))
        return cls(mean_value, mean_value - half_width, mean_value + half_width, known_values)

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width; None if the interval is not shown."""
        return None if self.high is None or len(self.values) < MIN_VALUES_FOR_BAND else self.high - self.mean


def student_t_quantile(degrees_of_freedom: int) -> float:
    """Return Student's t; beyond the table, the normal quantile with a correction, exact to 0.2 %."""
    if degrees_of_freedom <= len(STUDENT_T_QUANTILES):
        return STUDENT_T_QUANTILES[degrees_of_freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees_of_freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2)


def fit_line(points: Mapping[float, float]) -> RegressionLine:
    """Return the least-squares line. All of it is NaN for fewer than two points, the correlation if y is constant."""
    xs, ys = list(points), list(points.values())
    if len(xs) < 2:
        return RegressionLine(nan, nan, nan)
    slope, intercept = linear_regression(xs, ys)
    scatter_product_root = sqrt(sum_squared_deviations(xs) * sum_squared_deviations(ys))
    return RegressionLine(slope, intercept,
                          slope * sum_squared_deviations(xs) / scatter_product_root if scatter_product_root else nan)


def sum_squared_deviations(values: Sequence[float]) -> float:
    mean_value = fmean(values)
    return sum((value - mean_value) ** 2 for value in values)


def find_crossing(first_line: RegressionLine, second_line: RegressionLine) -> float:
    """Return the x at which the lines cross; NaN if they are parallel."""
    slope_difference = first_line.slope - second_line.slope
    return (second_line.intercept - first_line.intercept) / slope_difference if slope_difference else nan


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between the points around x, which are in ascending order; extrapolate beyond the ends."""
    if len(points) == 1:
        return points[0][1]
    index = sum(x > left for left, _ in points[1:-1])
    (left, low), (right, high) = points[index], points[index + 1]
    return low + (x - left) * (high - low) / (right - left)


def find_first_reaching(points: Sequence[tuple[float, float]], level: float) -> float:
    """Return the first x at which y reaches the level, with points in ascending order; NaN if it never does."""
    if points and points[0][1] >= level:
        return points[0][0]
    for (left, low), (right, high) in pairwise(points):
        if high >= level:
            return left + (level - low) * (right - left) / (high - low)
    return nan


def mean_by_key(pairs: Iterable[tuple[float, float]]) -> dict[float, float]:
    """Return the mean value for each key, with keys in ascending order."""
    values_by_key: dict[float, list[float]] = {}
    for key, value in pairs:
        values_by_key.setdefault(key, []).append(value)
    return {key: fmean(values_by_key[key]) for key in sorted(values_by_key)}


def mean_or_nan(values: Sequence[float]) -> float:
    return fmean(values) if values else nan
