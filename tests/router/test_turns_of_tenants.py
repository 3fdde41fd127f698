"""Tests of the turns of tenants in router/request.py."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import Overloaded
from router.request import FairSemaphore


class Acquisitions:
    """Acquisitions of a semaphore by name, which hold their place until they are released."""

    def __init__(self, num_places: int, max_pending_per_tenant: int = 100) -> None:
        self.semaphore = FairSemaphore(num_places, max_pending_per_tenant, "{} wait".format)
        self.holding: list[str] = []
        self._releases: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str) -> None:
        """Start acquisitions; the letter that a name begins with is the tenant."""
        for name in names:
            self._releases[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await self.settle()

    async def release(self, name: str) -> None:
        self._releases[name].set()
        await self.settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.semaphore.acquire(name[0]):
            self.holding.append(name)
            try:
                await self._releases[name].wait()
            finally:
                self.holding.remove(name)


def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()
    asyncio.run(main())


def test_places_go_to_one_tenant_after_the_other_and_within_a_tenant_in_order() -> None:
    async def scenario() -> None:
        acquisitions, order = Acquisitions(1), []
        await acquisitions.start("a0", "a1", "a2", "a3", "b0", "b1", "c0")
        while acquisitions.holding:
            [name] = acquisitions.holding
            order.append(name)
            await acquisitions.release(name)
        assert order == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]
        assert acquisitions.semaphore.is_unused
    run_scenario(scenario)


def test_tenant_with_too_much_pending_is_refused_and_others_are_not() -> None:
    async def scenario() -> None:
        acquisitions = Acquisitions(1, max_pending_per_tenant=2)
        await acquisitions.start("a0", "a1", "a2", "b0")
        with pytest.raises(Overloaded, match=r"^2 wait$"):
            await acquisitions.tasks["a2"]
        for name in ("a0", "a1", "b0"):
            assert not acquisitions.tasks[name].done()
        await acquisitions.release("a0")
        await acquisitions.start("a3")
        assert not acquisitions.tasks["a3"].done()
        acquisitions.semaphore.close()
        await acquisitions.cancel("a1")
    run_scenario(scenario)


def test_cancelled_acquisition_is_skipped_and_one_whose_turn_has_come_passes_it_on() -> None:
    async def scenario() -> None:
        acquisitions = Acquisitions(1)
        await acquisitions.start("a0", "b0", "c0", "d0")
        await acquisitions.cancel("b0")
        acquisitions._releases["a0"].set()
        await asyncio.sleep(0)  # the turn of c0 has come, and c0 does not know it yet
        acquisitions.tasks["c0"].cancel()
        await acquisitions.settle()
        assert acquisitions.holding == ["d0"]
        await acquisitions.release("d0")
        assert acquisitions.semaphore.is_unused
    run_scenario(scenario)


def test_turns_that_a_tenant_gives_up_are_forgotten_and_let_nobody_go_first() -> None:
    async def scenario() -> None:
        acquisitions = Acquisitions(1, max_pending_per_tenant=1000)
        given_up = [f"a{number}" for number in range(100)]
        await acquisitions.start("c0", *given_up, "a100", "b0", "b1")
        for name in given_up:
            acquisitions.tasks[name].cancel()
        acquisitions._releases["c0"].set()  # the place is passed on before those that gave up have run
        await acquisitions.settle()
        assert acquisitions.holding == ["a100"]
        assert sum(map(len, acquisitions.semaphore._queues.values())) == 2  # b0 and b1
        await acquisitions.start("a101")
        await acquisitions.cancel("a101")
        assert list(acquisitions.semaphore._queues) == ["b"]
        for name in ("a100", "b0", "b1"):
            await acquisitions.release(name)
        assert acquisitions.semaphore.is_unused
    run_scenario(scenario)


def test_close_cancels_those_that_wait() -> None:
    async def scenario() -> None:
        acquisitions = Acquisitions(1)
        await acquisitions.start("a0", "a1", "b0")
        acquisitions.semaphore.close()
        await acquisitions.settle()
        assert [name for name, task in acquisitions.tasks.items() if task.cancelled()] == ["a1", "b0"]
        await acquisitions.release("a0")
        assert acquisitions.semaphore.is_unused
    run_scenario(scenario)


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["start", "release", "cancel"]),
                                             st.sampled_from("abc"), st.integers(0, 5)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_all_places_are_used_while_any_acquisition_waits(num_places: int, moves: list[tuple[str, str, int]]) -> None:
    async def scenario() -> None:
        acquisitions = Acquisitions(num_places)
        for number, (move, tenant, index) in enumerate(moves):
            unfinished = [name for name, task in acquisitions.tasks.items() if not task.done()]
            if move == "start":
                await acquisitions.start(f"{tenant}{number}")
            elif move == "release" and acquisitions.holding:
                await acquisitions.release(acquisitions.holding[index % len(acquisitions.holding)])
            elif move == "cancel" and unfinished:
                await acquisitions.cancel(unfinished[index % len(unfinished)])
            num_unfinished = sum(not task.done() for task in acquisitions.tasks.values())
            assert len(acquisitions.holding) == min(num_places, num_unfinished)
        for task in acquisitions.tasks.values():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert acquisitions.semaphore.is_unused
    run_scenario(scenario)
