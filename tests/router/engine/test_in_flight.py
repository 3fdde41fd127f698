"""Plans whose answers are awaited."""

import asyncio
import gc
from math import inf

import pytest

from router.engine.in_flight import Awaited
from router.scheduler.plan import Plan


def plan(seconds=0.5):
    return Plan(1, 1, (), (), (), seconds)


def run(story):
    """Run a story with two plans in flight."""
    async def main():
        wake = asyncio.Event()
        awaited, answers = Awaited(wake.set), [asyncio.get_running_loop().create_future() for _ in range(2)]
        for answer in answers:
            awaited.add(plan(), answer, 5.0)
        await story(awaited, answers, wake)
    asyncio.run(main())


def test_an_answer_wakes_and_the_oldest_counts():
    async def story(awaited, answers, wake):
        answers[1].set_result("late")
        await wake.wait()
        assert not awaited.has_answer
        answers[0].set_result("early")
        assert awaited.has_answer
        assert awaited.oldest.answer.result() == "early"
    run(story)


def test_the_time_of_all_is_summed_and_that_of_who_was_answered_is_not():
    async def story(awaited, answers, wake):
        assert (len(awaited), awaited.seconds, awaited.since) == (2, 1.0, 5.0)
        awaited.drop_oldest()
        assert (len(awaited), awaited.seconds) == (1, 0.5)
        assert [sent.answer for sent in awaited] == [answers[1]]
    run(story)


def test_settling_waits_for_all_whatever_they_say():
    async def story(awaited, answers, wake):
        settling = asyncio.create_task(awaited.settle())
        answers[1].set_result("fine")
        await asyncio.sleep(0)
        assert not settling.done()
        answers[0].set_exception(OSError("gone"))
        await settling
        assert (len(awaited), awaited.has_answer, awaited.since) == (0, False, inf)
        await Awaited(wake.set).settle()
    run(story)


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_forgotten_wakes_nobody_and_is_not_reported_as_lost(fails):
    complaints = []

    async def story(awaited, answers, wake):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        if fails:
            answers[0].set_exception(OSError("gone"))
        awaited.forget()
        await asyncio.sleep(0)
        assert answers[1].cancelled()
        assert wake.is_set() is fails
    run(story)
    gc.collect()
    assert complaints == []
