"""Plans whose answers are awaited, and the readiness of the server; the clock is an argument."""

import asyncio
import gc
from typing import Any, cast

import pytest

from router.engine.plans_in_flight import (
    MIN_STEP_LIMIT_SECONDS,
    NUM_RECENT_STEPS,
    STARTING_REASON,
    Health,
    PlansInFlight,
)
from router.scheduler.shard_messages import StepPlan


def make_plan(seconds=0.5):
    return StepPlan(1, 1, (), (), (), seconds)


def run_with_two_plans(scenario):
    """Run a scenario with two plans in flight."""
    async def main():
        wake = asyncio.Event()
        awaited, answers = PlansInFlight(wake.set), [asyncio.get_running_loop().create_future() for _ in range(2)]
        for answer in answers:
            awaited.add(make_plan(), answer, 5.0)
        await scenario(awaited, answers, wake)
    asyncio.run(main())


def test_answer_wakes_the_engine_but_only_the_oldest_plan_is_completed():
    async def scenario(awaited, answers, wake):
        answers[1].set_result("late")
        await wake.wait()
        assert awaited.get_answered() is None
        answers[0].set_result("early")
        assert awaited.get_answered().answer.result() == "early"
    run_with_two_plans(scenario)


def test_predicted_seconds_sum_over_plans_in_flight():
    async def scenario(awaited, answers, wake):
        assert (len(awaited), awaited.total_predicted_seconds) == (2, 1.0)
        awaited.drop_oldest(6.0)
        assert (len(awaited), awaited.total_predicted_seconds) == (1, 0.5)
        assert [sent.answer for sent in awaited] == [answers[1]]
    run_with_two_plans(scenario)


def test_settle_waits_for_every_answer_even_failures():
    async def scenario(awaited, answers, wake):
        settling = asyncio.create_task(awaited.wait_and_clear())
        answers[1].set_result("fine")
        await asyncio.sleep(0)
        assert not settling.done()
        answers[0].set_exception(OSError("gone"))
        await settling
        assert (len(awaited), awaited.get_answered()) == (0, None)
        await PlansInFlight(wake.set).wait_and_clear()
    run_with_two_plans(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_cancelled_plans_wake_nobody_and_report_no_lost_errors(fails):
    complaints = []

    async def scenario(awaited, answers, wake):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        if fails:
            answers[0].set_exception(OSError("gone"))
        awaited.cancel_all()
        await asyncio.sleep(0)
        assert answers[1].cancelled()
        assert wake.is_set() is fails
    run_with_two_plans(scenario)
    gc.collect()
    assert complaints == []


# -- readiness


class FakeAnswer:
    """Answer that never comes by itself."""

    def add_done_callback(self, _: object) -> None:
        pass


def add_plan(plans: PlansInFlight, predicted_seconds: float, sent_at: float) -> None:
    plans.add(make_plan(predicted_seconds), cast("Any", FakeAnswer()), sent_at)


def run_steps(plans: PlansInFlight, count: int, seconds: float, now: float = 0.0) -> float:
    """Run steps one after the other and return the time when the last has ended."""
    for _ in range(count):
        add_plan(plans, 0.0, now)
        now += seconds
        plans.drop_oldest(now)
    return now


def make_plans() -> PlansInFlight:
    return PlansInFlight(lambda: None)


def make_ready_health(plans: PlansInFlight) -> Health:
    health = Health(plans)
    health.set_ready()
    return health


def test_server_is_unhealthy_until_it_is_ready() -> None:
    health = Health(make_plans())
    assert health.why_unavailable(0.0) == STARTING_REASON
    health.set_ready()
    assert health.why_unavailable(1e9) == ""


def test_step_may_take_the_minimum_limit_whatever_earlier_steps_took() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    now = run_steps(plans, 100, 0.01)
    add_plan(plans, 0.01, now)
    assert health.why_unavailable(now + MIN_STEP_LIMIT_SECONDS) == ""
    assert health.why_unavailable(now + MIN_STEP_LIMIT_SECONDS
                                  + 0.1) == "no step has ended for 5.1 seconds, where 5.0 are the most"


def test_step_time_counts_from_the_last_completed_step_while_others_are_in_flight() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    add_plan(plans, 0.0, 0.0)
    add_plan(plans, 0.0, 0.0)
    plans.drop_oldest(4.0)
    assert plans.seconds_without_progress(8.0) == 4.0
    assert health.why_unavailable(8.0) == ""
    assert health.why_unavailable(46.0) != ""


def test_idle_server_stays_healthy_and_the_next_step_gets_the_full_limit() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    now = run_steps(plans, 3, 0.1) + 1000.0
    assert health.why_unavailable(now) == ""
    add_plan(plans, 0.0, now)
    assert health.why_unavailable(now + 4.9) == ""


def test_step_limit_is_ten_times_the_99th_percentile() -> None:
    plans = make_plans()
    run_steps(plans, 1, 60.0, run_steps(plans, 99, 2.0))
    assert plans.max_seconds_without_progress == pytest.approx(20.0)
    run_steps(plans, 5, 3.0)
    assert plans.max_seconds_without_progress == pytest.approx(30.0)


def test_old_slow_steps_no_longer_raise_the_limit() -> None:
    plans = make_plans()
    run_steps(plans, NUM_RECENT_STEPS, 0.1, run_steps(plans, NUM_RECENT_STEPS, 30.0))
    assert plans.max_seconds_without_progress == MIN_STEP_LIMIT_SECONDS


def test_oldest_step_predicted_to_be_long_raises_the_limit() -> None:
    plans = make_plans()
    add_plan(plans, 0.1, 0.0)
    add_plan(plans, 3.0, 0.0)
    assert plans.max_seconds_without_progress == MIN_STEP_LIMIT_SECONDS
    plans.drop_oldest(0.1)
    assert plans.max_seconds_without_progress == pytest.approx(30.0)


def test_steps_in_flight_at_a_shard_loss_are_not_waited_for():
    async def scenario(awaited, answers, wake):
        health = make_ready_health(awaited)
        health.set_unready("the shards are lost")
        assert health.why_unavailable(100.0) == "the shards are lost"
        awaited.cancel_all()
        health.set_ready()
        assert health.why_unavailable(100.0) == ""
    run_with_two_plans(scenario)


def test_server_that_shuts_down_never_becomes_healthy_again() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    add_plan(plans, 0.0, 0.0)
    health.set_unready_permanently("the server is shutting down")
    plans.drop_oldest(1.0)
    health.set_unready("the shards are lost")
    health.set_ready()
    assert health.why_unavailable(2.0) == "the server is shutting down"


def test_step_duration_counts_from_sending_or_from_the_previous_result() -> None:
    plans = make_plans()
    for _ in range(2):
        add_plan(plans, 0.0, 1.0)
    assert (plans.drop_oldest(1.5), plans.drop_oldest(3.5)) == (0.5, 2.0)
