"""Tests of benchmarks/questions/bench_accuracy.py."""

from array import array
from collections.abc import Sequence

import pytest

from benchmarks.bench.load.record import Ask, Record
from benchmarks.questions.bench_accuracy import Point, compare, middle, table

STEP, TOKENS, SECONDS = 0.02, 10, 5.0
BEGAN = 100.0  # start of the records, on the clock of the steps


def steps() -> list[float]:
    return [moment for number in range(400) for moment in (BEGAN + STEP * number, BEGAN + STEP * (number + 1))]


def records(late: float = 0.0) -> list[Record]:
    """Return the records of a stream whose first tokens take three steps, each token noted `late` seconds too late."""
    made, sent = [], 0.0
    while sent < SECONDS:
        first = sent + 3 * STEP
        times = array("d", (first + STEP * number + late for number in range(TOKENS)))
        made.append(Record(Ask(len(made), "a", TOKENS), sent, times[-1], times, TOKENS))
        sent = first + STEP * (TOKENS - 1)
    return made


def compared(told: Sequence[Record]) -> Point:
    return compare(1, told, steps(), BEGAN, SECONDS)


def test_who_tells_the_truth_is_not_off() -> None:
    point = compared(records(late=1e-9))
    assert (point.first_token, point.between_tokens) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))
    assert point.throughput == pytest.approx(0, abs=0.03)  # a window holds no whole number of requests


def test_who_is_late_is_off_by_as_much() -> None:
    point = compared(records(late=0.003))
    assert point.first_token == pytest.approx(0.003 / (3 * STEP), rel=1e-3)
    assert (point.first_token_off_ms, point.between_tokens_off_ms) == (pytest.approx(3.0), pytest.approx(0, abs=1e-6))


def test_the_middle_of_points_is_that_of_each_figure() -> None:
    points = [Point(1, 0.1, 0.2, 0.3, 1, 2, 3, 4, 5), Point(1, 0.3, 0.1, 0.2, 3, 1, 2, 5, 4),
              Point(1, 0.2, 0.3, 0.1, 2, 3, 1, 6, 6)]
    assert middle(points) == Point(1, 0.2, 0.2, 0.2, 2, 2, 2, 5, 5)


def test_a_point_is_a_row() -> None:
    assert table([Point(8, 0.1, 0.2, 0.3, 1, 2, 3, 1.5, -0.25)]).splitlines()[1].split() == [
        "8", "+10.00%", "+1.50", "+20.00%", "-0.250", "+30.00%", "1.00", "2.000", "3.0"]
