"""Latency and throughput figures."""

from math import isnan

import pytest

from router.request import Request
from router.scheduler.events import Entered, Produced, Refused
from router.scheduler.plan import Decode, Newcomer, Plan, Prefill
from router.simulation.report import Figures, aligned, milliseconds, percentile, table

REQUEST = Request("a", (7,), 5)


def started(number):
    newcomer = Newcomer(number, REQUEST, (), (1,))
    return Plan(1, 1, (Prefill(1, (newcomer,), (), False),), (number,), (number,), 0.1)


def test_waiting_ends_with_the_first_step_and_the_first_token_comes_later():
    figures = Figures()
    assert figures.submitted([Entered(3)], 1.0) == 3
    figures.planned(started(3), 2.0)
    figures.heard([Produced({3: 1})], 2.5)
    figures.heard([Produced({3: 1})], 2.7)
    assert figures.seconds["wait"] == [1.0]
    assert figures.seconds["ttft"] == [1.5]
    assert figures.seconds["itl"] == [pytest.approx(0.2)]


def test_who_was_there_before_has_no_first_token():
    figures = Figures()
    figures.is_there(3)
    figures.planned(started(3), 2.0)
    figures.heard([Produced({3: 1})], 2.5)
    figures.heard([Produced({3: 1})], 2.7)
    assert [len(figures.seconds[kind]) for kind in ("wait", "ttft", "itl")] == [0, 0, 1]


def test_refusals_and_yields_are_counted_and_losses_are_no_yields():
    figures = Figures()
    assert figures.submitted([Refused("full", 1.0)], 0.0) is None
    figures.submitted([Entered(3)], 0.0)
    figures.planned(started(3), 1.0)
    figures.planned(started(3), 2.0)
    figures.shards_lost()
    figures.planned(started(3), 3.0)
    figures.planned(Plan(1, 4, (Decode(1),), (3,), (3,), 0.1), 4.0)
    assert (figures.num_requests, figures.num_refused, figures.num_yields) == (2, 1, 1)


def test_throughput_counts_tokens_over_all_the_time():
    figures = Figures(began=10.0)
    figures.submitted([Entered(3)], 10.0)
    figures.heard([Produced({3: 4})], 12.0)
    assert figures.tokens_per_second == 2.0
    assert Figures().tokens_per_second == 0.0


@pytest.mark.parametrize(("share", "value"), [(50, 50), (90, 90), (99, 99), (100, 100), (0, 1), (99.5, 100)])
def test_a_percentile_is_a_value_that_was_there(share, value):
    assert percentile(range(1, 101), share) == value


def test_the_percentile_of_nothing_is_no_number():
    assert isnan(percentile([], 50))


def test_a_table_has_a_column_for_each_run():
    lines = table({"one": Figures(), "two": Figures()}).splitlines()
    assert lines[0].split() == ["one", "two"]
    assert lines[1].split() == ["first", "token", "p50,", "ms", "-", "-"]
    assert lines[-1].split() == ["tokens", "per", "second", "0.0", "0.0"]


def test_figures_are_as_exact_as_they_are_worth():
    assert [milliseconds(seconds) for seconds in (0.00123, 0.0567, 1.2345)] == ["1.2", "56.7", "1234"]


def test_columns_are_aligned():
    assert aligned([["a", "b"], ["cc", "ddd"]]) == "a     b\ncc  ddd"
