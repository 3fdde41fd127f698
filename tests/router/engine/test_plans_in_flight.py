"""Plans whose answers are awaited."""

import asyncio
import gc
from math import inf

import pytest

from router.engine.plans_in_flight import PlansInFlight
from router.scheduler.messages import StepPlan


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
        assert (len(awaited), awaited.total_predicted_seconds, awaited.oldest_sent_at) == (2, 1.0, 5.0)
        awaited.drop_oldest()
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
        assert (len(awaited), awaited.get_answered(), awaited.oldest_sent_at) == (0, None, inf)
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
