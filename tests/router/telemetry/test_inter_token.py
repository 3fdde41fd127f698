"""Inter-token latencies, compared with a plain record of each sequence's last token."""

from hypothesis import given
from hypothesis import strategies as st

from router.telemetry.instruments import Family, Histogram, Kind
from router.telemetry.inter_token import Gaps


class Noting(Histogram):
    def __init__(self) -> None:
        super().__init__(Family("gaps", Kind.HISTOGRAM, "Gaps.", bounds=(1.0,)), ())
        self.noted: list[float] = []

    def observe(self, value: float, times: int = 1) -> None:
        self.noted += [value] * times


def delivered(gaps: Gaps, numbers: set[int], known: set[int], now: float) -> list[int]:
    return sorted(gaps.delivered(dict.fromkeys(numbers, 1).keys(), known, now))


def test_first_tokens_have_no_gap() -> None:
    histogram = Noting()
    gaps = Gaps(histogram)
    assert delivered(gaps, {1, 2}, {1, 2}, 5.0) == [1, 2]
    assert delivered(gaps, {1, 2}, {1, 2}, 7.0) == []
    assert delivered(gaps, {1, 2, 3}, {1, 2, 3}, 8.0) == [3]
    assert histogram.noted == [2.0, 2.0, 1.0, 1.0]


def test_who_missed_a_step_waited_since_its_own_last_token() -> None:
    histogram = Noting()
    gaps = Gaps(histogram)
    delivered(gaps, {1, 2}, {1, 2}, 1.0)
    delivered(gaps, {2}, {1, 2}, 2.0)
    assert delivered(gaps, {1}, {1, 2}, 5.0) == []
    assert histogram.noted == [1.0, 4.0]


def test_a_number_that_was_forgotten_is_new() -> None:
    gaps = Gaps(Noting())
    delivered(gaps, {1, 2}, {1, 2}, 1.0)
    delivered(gaps, {2}, {1, 2}, 2.0)
    gaps.forget(1)
    assert delivered(gaps, {1, 2}, {1, 2}, 3.0) == [1]


def test_nothing_is_kept_of_those_who_are_gone() -> None:
    gaps = Gaps(Noting())
    for number in range(100):
        delivered(gaps, {number, 1000}, {number, 1000}, float(number))
        gaps.forget(number)
    assert gaps._earlier == {}


@given(st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)), st.integers(0, 9)), max_size=40))
def test_gaps_are_those_of_a_plain_memory(steps: list[tuple[set[int], set[int], int]]) -> None:
    """Before each step some sequences leave; some of the others get tokens."""
    histogram, last, now = Noting(), dict[int, int](), 0
    gaps, expected, base = Gaps(histogram), list[float](), 0
    for leaving, having, pause in steps:
        for number in leaving & last.keys():
            gaps.forget(number)
            del last[number]
        base += 10  # a number is never used again
        numbers = {number for number in last if number % 10 in having} | {base + 1}
        now += pause
        known = last.keys() | numbers
        firsts = delivered(gaps, numbers, known, now)
        assert firsts == sorted(numbers - last.keys())
        expected += [now - last[number] for number in numbers & last.keys()]
        last |= dict.fromkeys(numbers, now)
    assert sorted(histogram.noted) == sorted(expected)
