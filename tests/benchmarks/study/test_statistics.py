from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.statistics import (
    ConfidenceBand,
    find_crossing,
    find_first_reaching,
    fit_line,
    interpolate,
    mean_by_key,
    mean_or_nan,
    student_t_quantile,
)

INTEGRAL_FLOATS = st.integers(-1000, 1000).map(float)


@given(st.sets(INTEGRAL_FLOATS, min_size=2), INTEGRAL_FLOATS, INTEGRAL_FLOATS.filter(bool))
def test_fit_of_points_on_a_line_is_that_line(xs: set[float], intercept: float, slope: float) -> None:
    line = fit_line({x: intercept + slope * x for x in xs})
    assert (line.slope, line.intercept) == (pytest.approx(slope), pytest.approx(intercept, abs=1e-6))
    assert line.correlation == pytest.approx(1 if slope > 0 else -1)


def test_constant_or_single_values_have_no_correlation() -> None:
    assert isnan(fit_line({1.0: 5.0, 2.0: 5.0}).correlation)
    assert isnan(fit_line({1.0: 5.0}).slope)


def test_crossing_is_where_both_lines_are_equal() -> None:
    rising, flat = fit_line({0.0: 0.0, 1.0: 0.1}), fit_line({0.0: 11.0, 1.0: 11.0})
    assert find_crossing(rising, flat) == pytest.approx(110)
    assert rising.intercept + 110 * rising.slope == pytest.approx(flat.intercept + 110 * flat.slope)
    assert isnan(find_crossing(flat, flat))


@given(st.lists(INTEGRAL_FLOATS, min_size=2))
def test_band_is_symmetric_around_its_mean(values: list[float]) -> None:
    band = ConfidenceBand.from_values(values)
    assert band.low is not None
    assert band.high is not None
    assert band.low <= band.mean <= band.high
    assert band.mean - band.low == pytest.approx(band.high - band.mean)


def test_single_value_has_no_band_and_nan_is_ignored() -> None:
    assert ConfidenceBand.from_values([2.0, nan]) == ConfidenceBand(2.0, None, None, (2.0,))
    assert isnan(ConfidenceBand.from_values([]).mean)


def test_band_uses_student_quantiles() -> None:
    band = ConfidenceBand.from_values([1.0, 2.0, 3.0, 4.0, 5.0])  # deviation 1.5811, by the root of 5, times 2.776
    assert (band.low, band.high) == (pytest.approx(1.037, abs=1e-3), pytest.approx(4.963, abs=1e-3))


def test_quantiles_approach_those_of_the_normal_distribution() -> None:
    quantiles = [student_t_quantile(degrees) for degrees in range(1, 40)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert (quantiles[9], quantiles[29]) == (pytest.approx(2.228, abs=3e-3), pytest.approx(2.042, abs=1e-3))


def test_interpolation_is_linear_and_extrapolates() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 60.0)]
    assert [interpolate(points, x) for x in (0.0, 1.0, 1.5, 3.0, 5.0)] == [0.0, 10.0, 15.0, 40.0, 80.0]
    assert interpolate([(1.0, 10.0)], 7.0) == 10.0


def test_level_is_reached_by_interpolation() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 60.0)]
    assert [find_first_reaching(points, level) for level in (5.0, 15.0, 40.0)] == [1.0, 1.5, 3.0]
    assert isnan(find_first_reaching(points, 61.0))


def test_means_are_sorted_by_key() -> None:
    assert list(mean_by_key([(2, 1.0), (1, 5.0), (2, 3.0)]).items()) == [(1, 5.0), (2, 2.0)]
    assert isnan(mean_or_nan([]))
