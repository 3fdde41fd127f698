from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.arithmetic import Band, crossing, fitted, interpolated, mean, mean_by, quantile, reaches

NUMBERS = st.integers(-1000, 1000).map(float)


@given(st.sets(NUMBERS, min_size=2), NUMBERS, NUMBERS.filter(bool))
def test_points_on_a_line_give_the_line_back(xs: set[float], intercept: float, slope: float) -> None:
    line = fitted({x: intercept + slope * x for x in xs})
    assert (line.slope, line.intercept) == (pytest.approx(slope), pytest.approx(intercept, abs=1e-6))
    assert line.correlation == pytest.approx(1 if slope > 0 else -1)


def test_what_is_flat_or_alone_correlates_with_nothing() -> None:
    assert isnan(fitted({1.0: 5.0, 2.0: 5.0}).correlation)
    assert isnan(fitted({1.0: 5.0}).slope)


def test_lines_meet_where_both_say_the_same() -> None:
    rising, flat = fitted({0.0: 0.0, 1.0: 0.1}), fitted({0.0: 11.0, 1.0: 11.0})
    assert crossing(rising, flat) == pytest.approx(110)
    assert rising.intercept + 110 * rising.slope == pytest.approx(flat.intercept + 110 * flat.slope)
    assert isnan(crossing(flat, flat))


@given(st.lists(NUMBERS, min_size=2))
def test_a_band_lies_around_its_mean(values: list[float]) -> None:
    band = Band.of(values)
    assert band.low is not None
    assert band.high is not None
    assert band.low <= band.mean <= band.high
    assert band.mean - band.low == pytest.approx(band.high - band.mean)


def test_a_single_value_has_no_band_and_unknown_ones_do_not_count() -> None:
    assert Band.of([2.0, nan]) == Band(2.0, None, None, (2.0,))
    assert isnan(Band.of([]).mean)


def test_a_band_of_five_is_that_of_student() -> None:
    band = Band.of([1.0, 2.0, 3.0, 4.0, 5.0])  # deviation 1.5811, by the root of 5, times 2.776
    assert (band.low, band.high) == (pytest.approx(1.037, abs=1e-3), pytest.approx(4.963, abs=1e-3))


def test_quantiles_fall_towards_those_of_the_normal_distribution() -> None:
    found = [quantile(degrees) for degrees in range(1, 40)]
    assert found == sorted(found, reverse=True)
    assert (found[9], found[29]) == (pytest.approx(2.228, abs=3e-3), pytest.approx(2.042, abs=1e-3))


def test_between_two_places_the_line_counts_and_beyond_it_goes_on() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 60.0)]
    assert [interpolated(points, x) for x in (0.0, 1.0, 1.5, 3.0, 5.0)] == [0.0, 10.0, 15.0, 40.0, 80.0]
    assert interpolated([(1.0, 10.0)], 7.0) == 10.0


def test_a_level_is_reached_between_two_places() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 60.0)]
    assert [reaches(points, level) for level in (5.0, 15.0, 40.0)] == [1.0, 1.5, 3.0]
    assert isnan(reaches(points, 61.0))


def test_means_come_by_their_key_in_rising_order() -> None:
    assert list(mean_by([(2, 1.0), (1, 5.0), (2, 3.0)]).items()) == [(1, 5.0), (2, 2.0)]
    assert isnan(mean([]))
