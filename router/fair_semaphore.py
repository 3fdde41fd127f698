"""Semaphore that tenants acquire in turns, so that none waits for all that another one has asked for before."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from router.errors import Overloaded

Turn = asyncio.Future[None]


class FairSemaphore:
    """Semaphore of some places. One that becomes free goes to the tenant whose turn is next, for its oldest request.
    `close` cancels the turns that have not come."""

    def __init__(self, num_places: int, max_pending_per_tenant: int, describe_refusal: Callable[[int], str]) -> None:
        """A tenant may hold and wait for `max_pending_per_tenant` places together; `describe_refusal` says of their
        number why there may be no more."""
        self._num_free, self._max_pending_per_tenant = num_places, max_pending_per_tenant
        self._describe_refusal = describe_refusal
        self._num_pending: Counter[str] = Counter()  # held or waited for, by tenant
        # Turns that have not come, by tenant; the tenant that is next comes first.
        self._queues: OrderedDict[str, deque[Turn]] = OrderedDict()

    @property
    def is_unused(self) -> bool:
        return not self._num_pending and not self._queues

    def close(self) -> None:
        for queue in self._queues.values():
            for turn in queue:
                turn.cancel()
        self._queues.clear()

    @asynccontextmanager
    async def acquire(self, tenant_name: str) -> AsyncIterator[None]:
        """Hold a place inside the context. Raises Overloaded if too much of the tenant is pending."""
        turn = self.request_turn(tenant_name)
        try:
            await turn
            yield
        finally:
            self.give_back(tenant_name, turn)

    def request_turn(self, tenant_name: str) -> Turn:
        """Return a future that is done when a place is the caller's, until `give_back`. Raises Overloaded."""
        if (num_pending := self._num_pending[tenant_name]) >= self._max_pending_per_tenant:
            raise Overloaded(self._describe_refusal(num_pending))
        self._num_pending[tenant_name] += 1
        turn: Turn = asyncio.get_running_loop().create_future()
        if self._num_free:
            self._num_free -= 1
            turn.set_result(None)
        else:
            self._queues.setdefault(tenant_name, deque()).append(turn)
        return turn

    def give_back(self, tenant_name: str, turn: Turn) -> None:
        """Give a turn back, whether it has come or not."""
        self._num_pending[tenant_name] -= 1
        if not self._num_pending[tenant_name]:
            del self._num_pending[tenant_name]
        if not turn.done() or turn.cancelled():
            turn.cancel()
        elif self._queues:
            self._pass_on()
        else:
            self._num_free += 1

    def _pass_on(self) -> None:
        while self._queues:
            tenant_name, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[tenant_name] = queue  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1
