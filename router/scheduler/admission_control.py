"""Admission control: a request that would wait too long, or behind too many others, is rejected with a retry time.

A request that can start with the next step does not wait, so the limits on the queue apply in full only while the step
before left sequences waiting (`num_left_waiting`). `WaitPredictor` predicts the wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from math import exp, log

from router.request import Request, Tenant
from router.scheduler.cost_model import SPEED_CHANGE_STREAK, CostModel, StepLoad
from router.scheduler.events import RequestRejected
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import Sequence
from router.scheduler.settings import SchedulerSettings
from router.scheduler.waiting_queue import FairShares, QueueDemand, WaitingQueue

DEFAULT_RETRY_SECONDS = 1.0  # seconds until a retry, if no wait can be predicted
# Of the forecast.
AVERAGE_WEIGHT = 0.03  # weight of the newest value in an average
MAX_LOG_CORRECTION = 1.5  # logarithm of the largest correction
INITIAL_ERROR_SPREAD = 0.25  # spread of errors before any was seen
UPPER_BOUND_SPREADS = 3.0  # times the spread, a mean absolute deviation: one error in a hundred is larger
MAX_SIMULATED_SEQUENCES = 128  # waiting sequences that are simulated
ASSUMED_SEQUENCE_LENGTH = 256  # tokens of a sequence, before any was seen
MIN_LEARNED_WAIT_SECONDS = 0.02  # seconds; nothing is learned from shorter waits


class WaitPredictor:
    """Forecast of a request's wait, from the requests before it, those that run, and past observations.

    `estimate_raw_wait` simulates the known schedule: a running sequence ends after its expected number of steps and
    frees its row of the batch and its slots of the cache, and then the next one may start. Three things are learned
    while serving: the part of `max_new_tokens` that sequences really generate, the duration of steps and the speed of
    prompts. `correct_bias` and `upper_bound` apply the error that remains, learned from the requests that started.
    """

    __slots__ = ("_error_spread", "_max_batch_size", "_mean_log_error", "_num_usable_slots", "_previous_averages",
                 "_prompt_token_seconds", "_recent_allowed_tokens", "_recent_generated_tokens", "_step_seconds")

    def __init__(self, settings: SchedulerSettings, num_slots: int, cost_model: CostModel) -> None:
        """Predict step times by `cost_model` until steps were seen; the cache has `num_slots` slots."""
        self._max_batch_size = rows = settings.max_batch_size
        self._num_usable_slots = num_slots * (1.0 - settings.reserved_block_fraction)
        # Tokens of ended sequences; equal at first: the full length is assumed.
        self._recent_generated_tokens = self._recent_allowed_tokens = 1.0
        self._step_seconds = cost_model.predict(StepLoad(rows, 0, min(rows * ASSUMED_SEQUENCE_LENGTH, num_slots)))
        # for a token of a prompt
        self._prompt_token_seconds = cost_model.predict(StepLoad(0, 1, 0)) - cost_model.predict(StepLoad())
        self._previous_averages: list[tuple[float, float]] = []  # both averages before each of the latest steps
        self._mean_log_error = 0.0  # mean logarithm of actual over predicted wait
        self._error_spread = INITIAL_ERROR_SPREAD  # mean absolute deviation from it

    def upper_bound(self, raw_wait: float) -> float:
        """Return the wait if the raw forecast errs unluckily (UPPER_BOUND_SPREADS) and the request just misses a step.

        About one wait in a hundred is longer. A raw forecast of 0 stays 0.
        """
        return (raw_wait * exp(self._mean_log_error + UPPER_BOUND_SPREADS * self._error_spread) + self._step_seconds
                if raw_wait else 0.0)

    def correct_bias(self, raw_wait: float) -> float:
        """Return the raw forecast, corrected by the mean error."""
        return raw_wait * exp(self._mean_log_error)

    def estimate_raw_wait(self, waiting: Iterable[Sequence], demand: QueueDemand, running: Iterable[Sequence]) -> float:
        """Return the raw forecast: seconds until all `waiting`, in total `demand`, have started and one more could."""
        prompts = [(sequence.length, self._expected_tokens_left(sequence))
                   for sequence in islice(waiting, MAX_SIMULATED_SEQUENCES)]
        steps = self._simulate_steps(prompts,
                                     [(self._expected_tokens_left(sequence), sequence.length) for sequence in running])
        # sequences beyond MAX_SIMULATED_SEQUENCES are assumed to be like the first
        extrapolation = max(demand.num_sequences, 1) / max(len(prompts), 1)
        return max(steps * extrapolation * self._step_seconds, demand.num_tokens * self._prompt_token_seconds)

    def _expected_tokens_left(self, sequence: Sequence) -> float:
        """Return the tokens that the sequence is expected to generate from now on, at least 1."""
        max_new_tokens, num_generated = sequence.request.max_new_tokens, len(sequence.generated)
        return max(max_new_tokens * self._recent_generated_tokens / self._recent_allowed_tokens - num_generated, 1.0)

    def _simulate_steps(self, prompts: list[tuple[int, float]], ends: list[tuple[float, int]]) -> float:
        """Return the number of steps until all waiting sequences have started and one more could.

        `prompts` are (length, tokens to generate) of the waiting sequences in order, `ends` (last step, slots) of the
        running ones. Slots are as of step 0: each sequence takes one more per step.
        """
        heapify(ends)
        step, num_held_slots = 0.0, sum(num_slots for _, num_slots in ends)
        for length, num_steps_left in [*prompts, (0, 0.0)]:
            while ends and (len(ends) >= self._max_batch_size
                            or num_held_slots + len(ends) * step + length > self._num_usable_slots):
                step, num_slots = heappop(ends)
                num_held_slots -= num_slots
            heappush(ends, (step + num_steps_left, length - int(step)))
            num_held_slots += length - int(step)
        return step

    # -- learning

    def scale_step_times(self, factor: float) -> None:
        """Scale the times of steps and prompts by `factor`.

        The factor applies to the averages before the streak of steps that revealed the change, since the present ones
        have partly followed that streak.
        """
        step_seconds, prompt_seconds = (self._previous_averages[0] if self._previous_averages
                                        else (self._step_seconds, self._prompt_token_seconds))
        self._step_seconds, self._prompt_token_seconds = factor * step_seconds, factor * prompt_seconds
        self._previous_averages = []

    def record_step(self, seconds: float, chunk_tokens: int, *, has_turned_new_sequence_away: bool) -> None:
        """Learn from the seconds between two answers.

        The speed of prompts is learned from crowded steps only, whose budget had no tokens for a sequence
        that could start otherwise.
        """
        # Keeps one entry per earlier step of a streak, so [0] is from before it.
        self._previous_averages = [*self._previous_averages[2 - SPEED_CHANGE_STREAK:],
                                   (self._step_seconds, self._prompt_token_seconds)]
        self._step_seconds += AVERAGE_WEIGHT * (seconds - self._step_seconds)
        if has_turned_new_sequence_away and chunk_tokens:
            self._prompt_token_seconds += AVERAGE_WEIGHT * (seconds / chunk_tokens - self._prompt_token_seconds)

    def record_output_length(self, num_generated: int, max_new_tokens: int) -> None:
        self._recent_generated_tokens += num_generated - AVERAGE_WEIGHT * self._recent_generated_tokens
        self._recent_allowed_tokens += max_new_tokens - AVERAGE_WEIGHT * self._recent_allowed_tokens

    def record_wait(self, raw_wait: float, actual_wait: float) -> None:
        """Learn from the raw forecast at arrival and the actual wait.

        The corrected forecast is not used: learning from it would compound the corrections.
        """
        if raw_wait > MIN_LEARNED_WAIT_SECONDS and actual_wait > MIN_LEARNED_WAIT_SECONDS:
            error = min(max(log(actual_wait / raw_wait), -MAX_LOG_CORRECTION), MAX_LOG_CORRECTION)
            self._mean_log_error += AVERAGE_WEIGHT * (error - self._mean_log_error)
            self._error_spread += AVERAGE_WEIGHT * (abs(error - self._mean_log_error) - self._error_spread)


@dataclass(slots=True, eq=False, repr=False)
class AdmissionControl:
    """Checks of a new request against limits on the number of requests, on tokens and on the predicted wait."""

    _settings: SchedulerSettings
    _queue: WaitingQueue
    _running: RunningSequences
    _fair_shares: FairShares
    _wait_forecast: WaitPredictor
    num_left_waiting: int = 0  # sequences that the last step left waiting

    def predict_raw_wait(self, tenant: Tenant) -> float:
        """Return the predicted wait without bias correction, as the forecast learns from it.

        The requests of other tenants get no more than their share before those of this tenant.
        """
        queue, running = self._queue, self._running
        if not self.num_left_waiting:
            return 0.0
        own_sequences = queue.get_runnable_sequences(tenant.name)
        has_all = (not self._fair_shares.has_several_tenants
                   and len(own_sequences) == queue.demand.num_sequences - queue.num_set_aside)
        if not has_all and not own_sequences and running.is_below_fair_share(tenant):
            return 0.0  # others are preempted for it
        wait = self._wait_forecast.estimate_raw_wait(queue.iter_unsuspended(), queue.demand, running)
        if has_all:
            return wait
        other_weights = sum(queue.get_runnable_sequences(name)[0].request.tenant.weight
                            for name in queue.tenants if name != tenant.name)
        wait_alone = self._wait_forecast.estimate_raw_wait(own_sequences, queue.tenant_demand(tenant.name), running)
        return min(wait, wait_alone * (other_weights + tenant.weight) / tenant.weight)

    def find_rejection(self, request: Request, num_unfinished: int, raw_wait: float) -> RequestRejected | None:
        """Return the rejection of a new request by the first limit that it exceeds, or None if it may wait."""
        wait, queue, tenant = self._wait_forecast.correct_bias(raw_wait), self._queue, request.tenant
        return (self._find_concurrency_rejection(tenant, num_unfinished, wait)
                or self._find_demand_rejection(queue.demand, self._settings, "", request, wait)
                or self._find_demand_rejection(queue.tenant_demand(tenant.name), tenant, f" of {tenant.name}", request,
                                               wait)
                or self._find_wait_rejection(request, wait, self._wait_forecast.upper_bound(raw_wait)))

    def _find_concurrency_rejection(self, tenant: Tenant, num_unfinished: int, wait: float) -> RequestRejected | None:
        limit = self._settings.max_concurrent_requests
        if num_unfinished >= limit:
            return RequestRejected(f"the limit of concurrent requests is reached (--max-concurrent-requests {limit})",
                                   wait or DEFAULT_RETRY_SECONDS)
        tenant_limit = tenant.max_concurrent_requests
        if tenant_limit is not None and self._fair_shares.num_unfinished(tenant) >= tenant_limit:
            return RequestRejected(f"the limit of concurrent requests of {tenant.name} is reached "
                                   f"(its `max_concurrent_requests` is {tenant_limit})",
                                   wait or DEFAULT_RETRY_SECONDS)
        return None

    def _find_demand_rejection(self, demand: QueueDemand, limits: SchedulerSettings | Tenant, owner_text: str,
                               request: Request, wait: float) -> RequestRejected | None:
        num_tokens = demand.num_tokens + request.num_given_tokens
        requests_limit, tokens_limit = (("its `max_queue_requests`", "its `max_queue_tokens`")
                                        if isinstance(limits, Tenant)
                                        else ("--max-queue-requests", "--max-queue-tokens"))
        limit = limits.max_queue_requests
        num_startable_at_once = 0 if self.num_left_waiting else self._settings.max_batch_size
        if limit is not None and demand.num_sequences >= limit + num_startable_at_once:
            return RequestRejected(f"{demand.num_sequences} requests{owner_text} wait, {requests_limit} is {limit}",
                                   estimate_drain_seconds(wait, demand.num_sequences, limit - 1))
        limit = limits.max_queue_tokens
        if limit is not None and self.num_left_waiting and num_tokens > limit:
            return RequestRejected(f"{num_tokens} prompt tokens{owner_text} would wait, {tokens_limit} is {limit}",
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
