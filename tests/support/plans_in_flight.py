"""Plans in flight without shards; the clock is an argument."""

import asyncio
from typing import Any, cast

from router.engine.plans_in_flight import PlansInFlight
from router.scheduler.shard_messages import StepPlan


class FakeAnswer:
    """Answer that never comes by itself."""

    def add_done_callback(self, _: object) -> None:
        pass


def make_plan(seconds=0.5):
    return StepPlan(1, 1, (), (), (), seconds)


def make_plans() -> PlansInFlight:
    return PlansInFlight(lambda: None)


def add_plan(plans: PlansInFlight, predicted_seconds: float, sent_at: float) -> None:
    plans.add(make_plan(predicted_seconds), cast("Any", FakeAnswer()), sent_at)


def run_steps(plans: PlansInFlight, count: int, seconds: float, now: float = 0.0) -> float:
    """Run steps one after the other and return the time when the last has ended."""
    for _ in range(count):
        add_plan(plans, 0.0, now)
        now += seconds
        plans.drop_oldest(now)
    return now


def run_with_two_plans(scenario):
    """Run a scenario with two plans in flight."""
    async def main():
        wake = asyncio.Event()
        awaited, answers = PlansInFlight(wake.set), [asyncio.get_running_loop().create_future() for _ in range(2)]
        for answer in answers:
            awaited.add(make_plan(), answer, 5.0)
        await scenario(awaited, answers, wake)
    asyncio.run(main())
