"""Timer whose deadline may be moved."""

import asyncio

from router.engine import engine as alarm
from router.engine.engine import MovableTimer


class CallCounter:
    """Callback that counts its calls and sets `first_call`."""

    def __init__(self):
        self.num_calls = 0
        self.first_call = asyncio.Event()

    def __call__(self):
        self.num_calls += 1
        self.first_call.set()


def run_scenario(scenario):
    async def main():
        callback = CallCounter()
        movable_timer = MovableTimer(callback)
        await scenario(movable_timer, callback)
        movable_timer.cancel()
    asyncio.run(main())


def test_timer_fires_once_at_its_deadline():
    async def scenario(movable_timer, callback):
        deadline = alarm.now() + 0.01
        movable_timer.set_deadline(deadline)
        await callback.first_call.wait()
        assert callback.num_calls == 1
        assert alarm.now() >= deadline
    run_scenario(scenario)


def test_deadline_in_the_past_fires_soon():
    async def scenario(movable_timer, callback):
        movable_timer.set_deadline(alarm.now() - 100)
        await callback.first_call.wait()
    run_scenario(scenario)


def test_unchanged_deadline_keeps_the_same_event_loop_timer():
    async def scenario(movable_timer, callback):
        deadline = alarm.now() + 100
        movable_timer.set_deadline(deadline)
        timer = movable_timer._timer
        movable_timer.set_deadline(deadline)
        assert movable_timer._timer is timer
        movable_timer.set_deadline(deadline + 1)
        assert timer.cancelled()
        assert movable_timer._timer is not timer
    run_scenario(scenario)


def test_deadline_of_none_cancels_the_timer():
    async def scenario(movable_timer, callback):
        movable_timer.set_deadline(alarm.now() + 100)
        timer = movable_timer._timer
        movable_timer.set_deadline(None)
        assert timer.cancelled()
        assert movable_timer._timer is None
    run_scenario(scenario)


def test_same_deadline_can_be_set_again_after_firing():
    async def scenario(movable_timer, callback):
        deadline = alarm.now()
        movable_timer.set_deadline(deadline)
        await callback.first_call.wait()
        callback.first_call.clear()
        movable_timer.set_deadline(deadline)
        await callback.first_call.wait()
        assert callback.num_calls == 2
    run_scenario(scenario)
