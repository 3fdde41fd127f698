"""Timer whose deadline may be moved."""

import asyncio

from router.engine import timer as alarm
from router.engine.timer import Alarm


class Rings:
    """Callback that counts its calls and sets `first`."""

    def __init__(self):
        self.count = 0
        self.first = asyncio.Event()

    def __call__(self):
        self.count += 1
        self.first.set()


def run(scenario):
    async def main():
        rings = Rings()
        one = Alarm(rings)
        await scenario(one, rings)
        one.cancel()
    asyncio.run(main())


def test_it_rings_once_at_the_moment():
    async def scenario(one, rings):
        moment = alarm.now() + 0.01
        one.set(moment)
        await rings.first.wait()
        assert rings.count == 1
        assert alarm.now() >= moment
    run(scenario)


def test_a_moment_that_is_past_rings_soon():
    async def scenario(one, rings):
        one.set(alarm.now() - 100)
        await rings.first.wait()
    run(scenario)


def test_the_same_moment_again_costs_no_timer():
    async def scenario(one, rings):
        moment = alarm.now() + 100
        one.set(moment)
        timer = one._timer
        one.set(moment)
        assert one._timer is timer
        one.set(moment + 1)
        assert timer.cancelled()
        assert one._timer is not timer
    run(scenario)


def test_it_may_be_set_to_never():
    async def scenario(one, rings):
        one.set(alarm.now() + 100)
        timer = one._timer
        one.set(None)
        assert timer.cancelled()
        assert one._timer is None
    run(scenario)


def test_it_may_be_set_to_the_same_moment_when_it_rang_too_early():
    async def scenario(one, rings):
        moment = alarm.now()
        one.set(moment)
        await rings.first.wait()
        rings.first.clear()
        one.set(moment)
        await rings.first.wait()
        assert rings.count == 2
    run(scenario)
