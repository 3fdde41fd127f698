"""Admission control: a request that would wait too long, or behind too many others, is rejected with a retry time.

A request that can start with the next step does not wait, so the limits on the queue apply in full only while the step
before left sequences waiting (`num_left_waiting`).
"""

from collections.abc import Sequence as GenericSequence

from router.request import Request, Tenant
from router.scheduler.events import RequestRejected
from router.scheduler.fairness import FairShares
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import Sequence
from router.scheduler.settings import SchedulerSettings
from router.scheduler.wait_forecast import WaitForecast
from router.scheduler.waiting_queue import QueueDemand, WaitingQueue

DEFAULT_RETRY_SECONDS = 1.0  # seconds until a retry, if no wait can be predicted


class AdmissionControl:
    """Checks of a new request against limits on the number of requests, on tokens and on the predicted wait."""

    def __init__(self, settings: SchedulerSettings, queue: WaitingQueue, running: RunningSequences,
                 fair_shares: FairShares, wait_forecast: WaitForecast) -> None:
        self._settings = settings
        self._queue = queue
        self._fair_shares = fair_shares
        self._wait_forecast = wait_forecast
        self._running = running
        self.num_left_waiting = 0  # sequences that the last step left waiting

    def predict_wait(self, tenant: Tenant) -> float:
        """Return the predicted seconds until a request that arrives now starts."""
        return self._wait_forecast.correct_bias(self.predict_raw_wait(tenant))

    def predict_raw_wait(self, tenant: Tenant) -> float:
        """Return the predicted wait without bias correction, as the forecast learns from it."""
        if not self.num_left_waiting:
            return 0.0
        own_sequences = self._queue.get_sequences_not_set_aside(tenant.name)
        if len(own_sequences) == len(self._queue) - self._queue.num_set_aside and not self._fair_shares.has_competition:
            return self._wait_forecast.estimate_raw_wait(self._queue, self._queue.demand, self._running)
        if not own_sequences and self._running.is_below_fair_share(tenant):
            return 0.0  # others are preempted for it
        return self._predict_wait_with_sharing(tenant, own_sequences)

    def _predict_wait_with_sharing(self, tenant: Tenant, own_sequences: GenericSequence[Sequence]) -> float:
        """Return the tenant's wait if the requests of others get no more than their share before its own."""
        other_weights = (self._queue.get_sequences_not_set_aside(name)[0].request.tenant.weight
                         for name in self._queue.tenants if name != tenant.name)
        wait_alone = self._wait_forecast.estimate_raw_wait(own_sequences, self._queue.tenant_demand(tenant.name),
                                                           self._running)
        return min(self._wait_forecast.estimate_raw_wait(self._queue, self._queue.demand, self._running),
                   wait_alone * (sum(other_weights) + tenant.weight) / tenant.weight)

    def find_rejection(self, request: Request, num_unfinished: int, raw_wait: float) -> RequestRejected | None:
        """Return the rejection of a new request, or None if it may wait. Of several limits that it exceeds, the first
        counts.
        """

        wait = self._wait_forecast.correct_bias(raw_wait)
        return (self._find_concurrency_rejection(request.tenant, num_unfinished, wait)
                or self._find_queue_limit_rejection(request, wait)
                or self._find_wait_rejection(request, wait, self._wait_forecast.upper_bound(raw_wait)))

    def _find_concurrency_rejection(self, tenant: Tenant, num_unfinished: int, wait: float) -> RequestRejected | None:
        limit = self._settings.max_concurrent_requests
        if num_unfinished >= limit:
            return RequestRejected(f"{limit} requests are in the house (--max-concurrent-requests {limit})",
                                   wait or DEFAULT_RETRY_SECONDS)
        tenant_limit = tenant.max_concurrent_requests
        if tenant_limit is not None and self._fair_shares.num_unfinished(tenant) >= tenant_limit:
            return RequestRejected(f"{tenant_limit} requests of {tenant.name} are in the house, "
                                   f"{describe_limit('max_concurrent_requests', is_tenant=True)} is {tenant_limit}",
                                   wait or DEFAULT_RETRY_SECONDS)
        return None

    def _find_queue_limit_rejection(self, request: Request, wait: float) -> RequestRejected | None:
        tenant = request.tenant
        return (self._find_demand_rejection(self._queue.demand, self._settings, "", request, wait)
                or self._find_demand_rejection(self._queue.tenant_demand(tenant.name), tenant, f" of {tenant.name}",
                                               request, wait))

    def _find_demand_rejection(self, demand: QueueDemand, limits: SchedulerSettings | Tenant, owner_text: str,
                               request: Request, wait: float) -> RequestRejected | None:
        limit = limits.max_queue_requests
        num_tokens = demand.num_tokens + len(request.prompt)
        is_tenant = isinstance(limits, Tenant)
        num_startable_at_once = 0 if self.num_left_waiting else self._settings.max_batch_size
        if limit is not None and demand.num_sequences >= limit + num_startable_at_once:
            return RequestRejected(f"{demand.num_sequences} requests{owner_text} wait, "
                                   f"{describe_limit('max_queue_requests', is_tenant=is_tenant)} is {limit}",
                                   estimate_drain_seconds(wait, demand.num_sequences, limit - 1))
        limit = limits.max_queue_tokens
        if limit is not None and self.num_left_waiting and num_tokens > limit:
            return RequestRejected(f"{num_tokens} prompt tokens{owner_text} would wait, "
                                   f"{describe_limit('max_queue_tokens', is_tenant=is_tenant)} is {limit}",
                                   estimate_drain_seconds(wait, num_tokens, limit))
        return None

    def _find_wait_rejection(self, request: Request, wait: float, worst_wait: float) -> RequestRejected | None:
        max_wait = self._settings.max_queue_seconds
        if max_wait is not None and worst_wait > max_wait:
            return RequestRejected(f"the wait is about {1000 * wait:.0f} ms, --max-queue-ms is {1000 * max_wait:.0f}",
                                   max(wait - max_wait, wait / 2))
        if request.timeout is not None and wait > request.timeout:
            return RequestRejected(f"the wait is about {1000 * wait:.0f} ms, x-request-timeout-ms is "
                                   f"{1000 * request.timeout:.0f}", wait - request.timeout)
        return None


def estimate_drain_seconds(wait: float, amount: int, target: int) -> float:
    """Return the seconds until `amount` has drained to `target`, if all of it drains within `wait`."""
    return wait * (amount - target) / amount if wait else DEFAULT_RETRY_SECONDS


def describe_limit(name: str, *, is_tenant: bool) -> str:
    """Return the name of a limit: the key in a tenant's settings, or the flag."""
    return f"its `{name}`" if is_tenant else f"--{name.replace('_', '-')}"
