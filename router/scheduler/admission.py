"""Admission control: a request that would wait too long, or behind too many others, is rejected with a retry time.

A request that can start with the next step does not wait, so the limits on the queue apply in full only while the step
before left sequences waiting (`backlog`).
"""

from collections.abc import Sequence as Rows

from router.request import Request, Tenant
from router.scheduler.events import Refused
from router.scheduler.fairness import Shares
from router.scheduler.running import Running
from router.scheduler.sequence import Sequence
from router.scheduler.settings import Policy
from router.scheduler.wait_forecast import Forecast
from router.scheduler.waiting_queue import Demand, Queue

SOON = 1.0  # seconds until a retry, if no wait can be predicted


class Admission:
    """Checks of a new request against limits on numbers, tokens and the predicted wait."""

    def __init__(self, policy: Policy, queue: Queue, shares: Shares, forecast: Forecast) -> None:
        self._policy = policy
        self._queue = queue
        self._shares = shares
        self._forecast = forecast
        self.backlog = 0  # sequences that the last step left waiting

    def predicted_wait(self, tenant: Tenant) -> float:
        """Return the predicted seconds until a request that arrives now starts."""
        return self._forecast.corrected(self.plain_wait(tenant))

    def plain_wait(self, tenant: Tenant) -> float:
        """Return the predicted wait without bias correction, as the forecast learns from it."""
        if not self.backlog:
            return 0.0
        own = self._queue.of(tenant.name)
        if len(own) == len(self._queue) - self._queue.num_aside and not self._shares.several:
            return self._forecast.plain(self._queue, self._queue.demand, self._running)
        if not own and self._running.has_less_than_its_share(tenant):
            return 0.0  # others are preempted for it
        return self._beside_others(tenant, own)

    def _beside_others(self, tenant: Tenant, own: Rows[Sequence]) -> float:
        """Return the tenant's wait if the requests of others get no more than their share before its own."""
        others = (self._queue.of(name)[0].request.tenant.weight for name in self._queue.tenants if name != tenant.name)
        alone = self._forecast.plain(own, self._queue.demand_of(tenant.name), self._running)
        return min(self._forecast.plain(self._queue, self._queue.demand, self._running),
                   alone * (sum(others) + tenant.weight) / tenant.weight)

    def start_empty(self, running: Running) -> None:
        self._running = running

    def refusal(self, request: Request, num_unfinished: int, plain_wait: float) -> Refused | None:
        wait = self._forecast.corrected(plain_wait)
        return (self._too_many(request.tenant, num_unfinished, wait) or self._too_deep(request, wait)
                or self._too_late(request, wait, self._forecast.at_worst(plain_wait)))

    def _too_many(self, tenant: Tenant, num_unfinished: int, wait: float) -> Refused | None:
        limit = self._policy.max_concurrent_requests
        if num_unfinished >= limit:
            return Refused(f"{limit} requests are in the house (--max-concurrent-requests {limit})", wait or SOON)
        own = tenant.max_concurrent_requests
        if own is not None and self._shares.num_present(tenant) >= own:
            return Refused(f"{own} requests of {tenant.name} are in the house, {flag('max_concurrent_requests', 'its')}"
                           f" is {own}", wait or SOON)
        return None

    def _too_deep(self, request: Request, wait: float) -> Refused | None:
        tenant = request.tenant
        return (self._deeper(self._queue.demand, self._policy, "", request, wait)
                or self._deeper(self._queue.demand_of(tenant.name), tenant, f" of {tenant.name}", request, wait))

    def _deeper(self, demand: Demand, limits: Policy | Tenant, whose: str, request: Request,
                wait: float) -> Refused | None:
        most, tokens = limits.max_queue_requests, demand.tokens + len(request.prompt)
        unplanned = 0 if self.backlog else self._policy.max_batch_size
        if most is not None and demand.count >= most + unplanned:
            return Refused(f"{demand.count} requests{whose} wait, {flag('max_queue_requests', whose)} is {most}",
                           until(wait, demand.count, most - 1))
        most = limits.max_queue_tokens
        if most is not None and self.backlog and tokens > most:
            return Refused(f"{tokens} prompt tokens{whose} would wait, {flag('max_queue_tokens', whose)} is {most}",
                           until(wait, tokens, most))
        return None

    def _too_late(self, request: Request, wait: float, at_worst: float) -> Refused | None:
        longest = self._policy.max_queue_seconds
        if longest is not None and at_worst > longest:
            return Refused(f"the wait is about {1000 * wait:.0f} ms, --max-queue-ms is {1000 * longest:.0f}",
                           max(wait - longest, wait / 2))
        if request.timeout is not None and wait > request.timeout:
            return Refused(f"the wait is about {1000 * wait:.0f} ms, x-request-timeout-ms is "
                           f"{1000 * request.timeout:.0f}", wait - request.timeout)
        return None


def until(wait: float, much: int, most: int) -> float:
    """Return the seconds until `much` has drained to `most`, if all of it drains within `wait`."""
    return wait * (much - most) / much if wait else SOON


def flag(name: str, whose: str) -> str:
    return f"its `{name}`" if whose else f"--{name.replace('_', '-')}"
