"""Health and forward progress; the clock is an argument."""

import pytest

from router.engine.health import LEAST_BOUND, NUM_RECENT, STARTING, Health, Progress


def steps(progress: Progress, count: int, seconds: float, now: float = 0.0) -> float:
    """Run steps one after the other and return the time when the last has ended."""
    for _ in range(count):
        progress.sent(0.0, now)
        now += seconds
        progress.ended(now)
    return now


def serving() -> Health:
    health = Health()
    health.well()
    return health


def test_a_server_that_starts_is_not_healthy_and_then_it_is() -> None:
    health = Health()
    assert health.ailment(0.0) == STARTING
    health.well()
    assert health.ailment(1e9) == ""


def test_a_step_may_take_five_seconds_whatever_steps_took_before() -> None:
    health = serving()
    now = steps(health.progress, 100, 0.01)
    health.progress.sent(0.01, now)
    assert health.ailment(now + LEAST_BOUND) == ""
    assert health.ailment(now + LEAST_BOUND + 0.1) == "no step has ended for 5.1 seconds, where 5.0 are the most"


def test_time_counts_from_the_last_step_that_ended_while_others_are_under_way() -> None:
    health = serving()
    health.progress.sent(0.0, 0.0)
    health.progress.sent(0.0, 0.0)
    health.progress.ended(4.0)
    assert health.progress.waiting(8.0) == 4.0
    assert health.ailment(8.0) == ""
    assert health.ailment(46.0) != ""


def test_idle_is_healthy_for_any_time_and_the_next_step_has_all_of_its_own() -> None:
    health = serving()
    now = steps(health.progress, 3, 0.1) + 1000.0
    assert health.ailment(now) == ""
    health.progress.sent(0.0, now)
    assert health.ailment(now + 4.9) == ""


def test_where_steps_are_slow_ten_of_the_slowest_hundredth_may_pass() -> None:
    progress = Progress()
    steps(progress, 1, 60.0, steps(progress, 99, 2.0))
    assert progress.bound == pytest.approx(20.0)
    steps(progress, 5, 3.0)
    assert progress.bound == pytest.approx(30.0)


def test_slow_steps_of_long_ago_are_forgotten() -> None:
    progress = Progress()
    steps(progress, NUM_RECENT, 0.1, steps(progress, NUM_RECENT, 30.0))
    assert progress.bound == LEAST_BOUND


def test_a_step_that_is_foreseen_to_be_long_may_be_while_it_is_the_oldest() -> None:
    progress = Progress()
    progress.sent(0.1, 0.0)
    progress.sent(3.0, 0.0)
    assert progress.bound == LEAST_BOUND
    progress.ended(0.1)
    assert progress.bound == pytest.approx(30.0)


def test_what_was_under_way_when_the_shards_were_lost_is_not_waited_for() -> None:
    health = serving()
    health.progress.sent(0.0, 0.0)
    health.ill("the shards are lost")
    assert health.ailment(100.0) == "the shards are lost"
    health.well()
    assert health.ailment(100.0) == ""


def test_who_leaves_does_not_get_well_again_and_steps_go_on() -> None:
    health = serving()
    health.progress.sent(0.0, 0.0)
    health.leave("the server is shutting down")
    health.progress.ended(1.0)
    health.ill("the shards are lost")
    health.well()
    assert health.ailment(2.0) == "the server is shutting down"


def test_a_step_took_the_time_since_it_was_sent_or_the_one_before_was_answered() -> None:
    progress = Progress()
    for _ in range(2):
        progress.sent(0.0, 1.0)
    assert (progress.ended(1.5), progress.ended(3.5)) == (0.5, 2.0)
