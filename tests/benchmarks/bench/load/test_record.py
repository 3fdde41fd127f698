"""Tests of the record of a request."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import answer, refusal, whole

from benchmarks.bench.load.record import Ask, Record


def test_the_first_token_is_counted_from_when_it_was_sent() -> None:
    assert answer(sent=2.0, first=0.5).first_token == pytest.approx(0.5)
    assert answer(sent=2.0, first=0.5, gap=0.25, tokens=3).latency == pytest.approx(1.0)


def test_who_sends_late_makes_nobody_wait_less() -> None:
    late = Record(Ask(0, "a", 1, at=1.0), 1.5, 3.0, array("d", [2.0, 3.0]))
    assert (late.due, late.first_token, late.latency) == (1.0, 1.0, 2.0)


def test_who_sends_early_waits_from_then_on_and_so_does_who_was_never_due() -> None:
    assert Record(Ask(0, "a", 1, at=1.0), 0.75, 3.0).latency == 2.25
    assert Record(Ask(0, "a", 1), 0.75, 3.0).latency == 2.25


def test_what_was_not_streamed_has_no_first_token_and_no_gaps() -> None:
    record = whole(sent=1.0, ended=3.0)
    assert (record.first_token, record.gaps, record.seconds_per_token, record.latency) == (None, [], None, 2.0)


def test_a_single_token_is_followed_by_nothing() -> None:
    record = answer(tokens=1)
    assert (record.gaps, record.seconds_per_token) == ([], None)


def test_what_was_refused_has_no_times() -> None:
    assert refusal().first_token is None


def test_several_tokens_may_come_at_once() -> None:
    record = answer(gap=0.3, tokens=2)
    record.num_tokens = 4
    assert record.seconds_per_token == pytest.approx(0.1)
    assert record.gaps == [pytest.approx(0.3)]


@given(st.integers(2, 9), st.floats(0.001, 10.0))
def test_tokens_at_even_distances_take_that_long_each(tokens: int, gap: float) -> None:
    record = answer(gap=gap, tokens=tokens)
    assert record.seconds_per_token == pytest.approx(gap)
    assert sum(record.gaps) == pytest.approx(gap * (tokens - 1))
