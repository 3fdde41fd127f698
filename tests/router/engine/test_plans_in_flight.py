"""Plans whose answers are awaited; the clock is an argument."""

import asyncio
import gc

import pytest
from support.plans_in_flight import add_plan, make_plans, run_steps, run_with_two_plans

from router.engine.plans_in_flight import MIN_STEP_LIMIT_SECONDS, NUM_RECENT_STEPS, PlansInFlight


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
        assert [in_flight.answer for in_flight in awaited] == [answers[1]]
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


def test_step_limit_is_ten_times_the_99th_percentile() -> None:
    plans = make_plans()
    run_steps(plans, 1, 60.0, run_steps(plans, 99, 2.0))
    assert plans.no_progress_limit_seconds == pytest.approx(20.0)
    run_steps(plans, 5, 3.0)
    assert plans.no_progress_limit_seconds == pytest.approx(30.0)


def test_old_slow_steps_no_longer_raise_the_limit() -> None:
    plans = make_plans()
    run_steps(plans, NUM_RECENT_STEPS, 0.1, run_steps(plans, NUM_RECENT_STEPS, 30.0))
    assert plans.no_progress_limit_seconds == MIN_STEP_LIMIT_SECONDS


def test_oldest_step_predicted_to_be_long_raises_the_limit() -> None:
    plans = make_plans()
    add_plan(plans, 0.1, 0.0)
    add_plan(plans, 3.0, 0.0)
    assert plans.no_progress_limit_seconds == MIN_STEP_LIMIT_SECONDS
    plans.drop_oldest(0.1)
    assert plans.no_progress_limit_seconds == pytest.approx(30.0)


def test_step_duration_counts_from_sending_or_from_the_previous_result() -> None:
    plans = make_plans()
    for _ in range(2):
        add_plan(plans, 0.0, 1.0)
    assert (plans.drop_oldest(1.5), plans.drop_oldest(3.5)) == (0.5, 2.0)
