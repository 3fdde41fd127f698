"""Health and forward progress; the clock is an argument."""

import pytest

from router.engine.health import STARTING_REASON, Health
from router.engine.plans_in_flight import MIN_STEP_LIMIT_SECONDS, NUM_RECENT_STEPS, StepWatchdog


def run_steps(watchdog: StepWatchdog, count: int, seconds: float, now: float = 0.0) -> float:
    """Run steps one after the other and return the time when the last has ended."""
    for _ in range(count):
        watchdog.add_step(0.0, now)
        now += seconds
        watchdog.finish_oldest_step(now)
    return now


def make_ready_health() -> Health:
    health = Health()
    health.set_ready()
    return health


def test_server_is_unhealthy_until_it_is_ready() -> None:
    health = Health()
    assert health.why_unavailable(0.0) == STARTING_REASON
    health.set_ready()
    assert health.why_unavailable(1e9) == ""


def test_step_may_take_the_minimum_limit_whatever_earlier_steps_took() -> None:
    health = make_ready_health()
    now = run_steps(health.watchdog, 100, 0.01)
    health.watchdog.add_step(0.01, now)
    assert health.why_unavailable(now + MIN_STEP_LIMIT_SECONDS) == ""
    assert health.why_unavailable(now + MIN_STEP_LIMIT_SECONDS
                                  + 0.1) == "no step has ended for 5.1 seconds, where 5.0 are the most"


def test_step_time_counts_from_the_last_completed_step_while_others_are_in_flight() -> None:
    health = make_ready_health()
    health.watchdog.add_step(0.0, 0.0)
    health.watchdog.add_step(0.0, 0.0)
    health.watchdog.finish_oldest_step(4.0)
    assert health.watchdog.seconds_without_progress(8.0) == 4.0
    assert health.why_unavailable(8.0) == ""
    assert health.why_unavailable(46.0) != ""


def test_idle_server_stays_healthy_and_the_next_step_gets_the_full_limit() -> None:
    health = make_ready_health()
    now = run_steps(health.watchdog, 3, 0.1) + 1000.0
    assert health.why_unavailable(now) == ""
    health.watchdog.add_step(0.0, now)
    assert health.why_unavailable(now + 4.9) == ""


def test_step_limit_is_ten_times_the_99th_percentile() -> None:
    progress = StepWatchdog()
    run_steps(progress, 1, 60.0, run_steps(progress, 99, 2.0))
    assert progress.max_seconds_without_progress == pytest.approx(20.0)
    run_steps(progress, 5, 3.0)
    assert progress.max_seconds_without_progress == pytest.approx(30.0)


def test_old_slow_steps_no_longer_raise_the_limit() -> None:
    progress = StepWatchdog()
    run_steps(progress, NUM_RECENT_STEPS, 0.1, run_steps(progress, NUM_RECENT_STEPS, 30.0))
    assert progress.max_seconds_without_progress == MIN_STEP_LIMIT_SECONDS


def test_oldest_step_predicted_to_be_long_raises_the_limit() -> None:
    progress = StepWatchdog()
    progress.add_step(0.1, 0.0)
    progress.add_step(3.0, 0.0)
    assert progress.max_seconds_without_progress == MIN_STEP_LIMIT_SECONDS
    progress.finish_oldest_step(0.1)
    assert progress.max_seconds_without_progress == pytest.approx(30.0)


def test_steps_in_flight_at_a_shard_loss_are_not_waited_for() -> None:
    health = make_ready_health()
    health.watchdog.add_step(0.0, 0.0)
    health.set_unready("the shards are lost")
    assert health.why_unavailable(100.0) == "the shards are lost"
    health.set_ready()
    assert health.why_unavailable(100.0) == ""


def test_server_that_shuts_down_never_becomes_healthy_again() -> None:
    health = make_ready_health()
    health.watchdog.add_step(0.0, 0.0)
    health.set_unready_permanently("the server is shutting down")
    health.watchdog.finish_oldest_step(1.0)
    health.set_unready("the shards are lost")
    health.set_ready()
    assert health.why_unavailable(2.0) == "the server is shutting down"


def test_step_duration_counts_from_sending_or_from_the_previous_result() -> None:
    progress = StepWatchdog()
    for _ in range(2):
        progress.add_step(0.0, 1.0)
    assert (progress.finish_oldest_step(1.5), progress.finish_oldest_step(3.5)) == (0.5, 2.0)
