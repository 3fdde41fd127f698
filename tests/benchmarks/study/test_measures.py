from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.record import Ask, Record
from benchmarks.study.measures import (
    answers,
    by_tokens,
    figures,
    is_enough,
    offered,
    seconds_alone,
    served,
    under_load,
    window,
    with_users,
)
from benchmarks.study.plan import Pace, Run
from benchmarks.study.records import Taken

LINE = ((1.0, 0.1), (100.0, 10.0))  # a tenth of a second a token
PACE = Pace(LINE, LINE, LINE)
COMPAT = Run("compat", "simulated", "figure", "dynamic")
SWEEP = Run("sweep", "simulated", "poisson", "mixed", level=2.0)
USERS = Run("users", "simulated", "closed", "mixed", level=4.0)


def record(tokens: int, sent: float, ended: float, *times: float, error: str = "") -> Record:
    return Record(Ask(0, "", tokens, at=sent), sent, ended, array("d", times), tokens, error=error)


def taken(run: Run, *records: Record) -> Taken:
    return Taken(run, {}, {}, list(records))


def flow(run: Run, latency: float, *, until: float = 40.0) -> Taken:
    """Return a run that is offered ten tokens per second and sends each answer at once after `latency` seconds."""
    return taken(run, *(record(10, float(at), at + latency, at + latency) for at in range(int(until) + 1)))


def test_in_the_studys_mode_the_clock_is_the_servers() -> None:
    """Requests of a burst may arrive in another order than they were sent; client-side latencies became negative."""
    burst = [replace(record(10, 0.0, 9.0 - place), told_seconds=1.0) for place in range(9)]
    assert [answer.seconds for answer in answers(taken(COMPAT, *burst), PACE)] == [1.0] * 9
    assert seconds_alone(burst) == ((10, 1.0),)


def test_elsewhere_the_clock_begins_when_a_request_is_due_however_late_it_was_sent() -> None:
    late = Record(Ask(0, "", 10, at=1.0), 3.0, 6.0, array("d", [4.0, 6.0]))
    [answer] = answers(taken(SWEEP, late), PACE)
    assert (answer.seconds, answer.first) == (5.0, 3.0)
    assert window([late]) == (0.5, 1.0)


def test_who_failed_gave_no_answer() -> None:
    assert answers(taken(SWEEP, record(10, 0.0, 1.0, error="503")), PACE) == []


@given(st.lists(st.integers(1, 100), min_size=2, unique=True))
def test_latency_that_is_a_line_in_tokens_is_one(lengths: list[int]) -> None:
    """Each request runs alone, so none is slowed down and all get the same tokens per second."""
    records = [record(length, 100.0 * place, 100.0 * place + length / 10) for place, length in enumerate(lengths)]
    told = figures(answers(taken(SWEEP, *records), PACE))
    assert (told["slope"], told["correlation"]) == (pytest.approx(0.1), pytest.approx(1))
    assert (told["jain"], told["slowdown"]) == (pytest.approx(1), pytest.approx(1))
    assert told["study_throughput"] == pytest.approx(10)


def test_the_studys_throughput_is_not_that_of_the_wall() -> None:
    told = figures(answers(taken(SWEEP, *(record(10, 0.0, 2.0, 0.5, 2.0) for _ in range(4))), PACE))
    assert (told["study_throughput"], told["tokens_per_second"]) == (5.0, 20.0)
    assert (told["longest_wait"], told["latency_per_token"]) == (0.5, 0.2)


def test_lengths_weigh_alike_in_the_mean_however_often_they_were_asked_for() -> None:
    found = answers(taken(SWEEP, record(5, 0.0, 1.0), record(5, 0.0, 3.0), record(9, 0.0, 6.0)), PACE)
    assert by_tokens(found) == {5: 2.0, 9: 6.0}
    assert figures(found)["mean_latency"] == 4.0


def test_alone_the_least_of_each_length_counts() -> None:
    records = [record(9, 0.0, 6.0), record(5, 6.0, 8.0), record(5, 7.0, 10.0), record(5, 0.0, 1.0, error="503")]
    assert seconds_alone(records) == ((5, 2.0), (9, 6.0))


def test_a_server_that_keeps_up_serves_what_is_offered() -> None:
    kept_up = flow(SWEEP, 2.0)
    assert window(kept_up.records) == (20.0, 40.0)
    assert served(kept_up.records) == pytest.approx(offered(kept_up.records))
    told = under_load(kept_up, PACE)
    assert (told["latency_p50"], told["per_token_p50"], told["slowdown"]) == (2.0, 0.2, pytest.approx(2.0))
    assert (told["requests_per_second"], told["first_token_p95"]) == (pytest.approx(1.0, rel=0.03), 2.0)


def test_a_policy_is_at_its_end_when_it_did_not_keep_up_twice_in_a_row() -> None:
    kept_up, late = flow(SWEEP, 2.0), flow(SWEEP, 30.0)
    assert not is_enough([kept_up])
    assert not is_enough([late])
    assert not is_enough([late, kept_up])
    assert is_enough([kept_up, late, late])


def test_users_are_too_many_when_they_wait_more_than_twice_as_long() -> None:
    alone, some, many = flow(USERS, 1.0), flow(USERS, 2.0), flow(USERS, 2.1)
    assert not is_enough([alone, some])
    assert is_enough([alone, some, many])


def test_the_last_ones_who_have_less_company_do_not_count() -> None:
    told = with_users(taken(USERS, record(10, 0.0, 4.0), record(10, 0.0, 5.0), record(10, 5.0, 6.0)), PACE)
    assert told["per_token_p50"] == pytest.approx(0.45)
    assert told["tokens_per_second"] == 5.0
