"""Tests of router/scheduler/admission_control.py through the core: rejections, their reasons, and when to retry."""

from dataclasses import replace

import pytest
from support.scheduling.scheduler_simulation import predict_wait

from router.model_info import ModelInfo, StepMeasurement
from router.request import DEFAULT_TENANT, Request, Tenant
from router.scheduler.events import RequestAccepted, RequestRejected
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow

STEP_MEASUREMENTS = tuple(StepMeasurement(rows, tokens, 16 * rows + tokens, 0.01 + 1e-4 * rows + 1e-4 * tokens)
                          for rows, tokens in ((1, 0), (8, 0), (32, 0), (1, 64), (1, 512)))
MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 1000, measurements=STEP_MEASUREMENTS)


def make_full_scheduler(num_waiting: int = 3, tenant: Tenant = DEFAULT_TENANT, **settings: float) -> Scheduler:
    """Return a core with a full batch and `num_waiting` requests in the queue."""
    core = Scheduler(replace(SchedulerSettings(max_batch_size=4, max_stall_seconds=10.0), **settings), MODEL_INFO)
    core.on_shards_ready(MODEL_INFO, 1, 0.0)
    for number in range(4 + num_waiting):
        assert isinstance(submit(core, str(number), tenant=tenant), RequestAccepted)
    core.plan(0.0)
    return core


def submit(core: Scheduler, name: str = "x", **request_fields: object) -> object:
    fields = {"tenant": DEFAULT_TENANT} | request_fields
    return core.submit(Request(name, (7,) * 100, 50, **fields), 0.0)[0]  # type: ignore[arg-type]


def get_rejection(core: Scheduler, **request_fields: object) -> RequestRejected:
    event = submit(core, **request_fields)
    assert isinstance(event, RequestRejected)
    return event


def test_request_beyond_the_concurrency_limit_is_rejected() -> None:
    reason = get_rejection(make_full_scheduler(max_concurrent_requests=7)).reason
    assert "the limit of concurrent requests is reached (--max-concurrent-requests 7)" in reason


@pytest.mark.parametrize(("policy", "words"), [
    ({"max_queue_requests": 3}, "3 requests wait, --max-queue-requests is 3"),
    ({"max_queue_tokens": 350}, "400 prompt tokens would wait, --max-queue-tokens is 350"),
    ({"max_queue_seconds": 0.5}, "--max-queue-ms is 500"),
])
def test_queue_limits_reject_requests(policy: dict[str, float], words: str) -> None:
    event = get_rejection(make_full_scheduler(**policy))
    assert words in event.reason
    assert event.retry_after > 0


def test_resumed_tokens_count_like_those_of_the_prompt() -> None:
    reason = get_rejection(make_full_scheduler(max_queue_tokens=400), resumed_tokens=(5,)).reason
    assert "401 prompt tokens would wait, --max-queue-tokens is 400" in reason


def test_request_that_can_start_with_the_next_step_does_not_count_as_waiting() -> None:
    core = Scheduler(replace(SchedulerSettings(max_batch_size=8), max_queue_requests=1, max_queue_tokens=10),
                     MODEL_INFO)
    core.on_shards_ready(MODEL_INFO, 1, 0.0)
    assert all(isinstance(submit(core), RequestAccepted) for _ in range(8))


@pytest.mark.parametrize(("policy", "limits"), [
    ({"max_queue_requests": 1}, {}), ({"max_queue_tokens": 10}, {}), ({"max_queue_seconds": 0.001}, {}),
    ({}, {"max_queue_requests": 1}), ({}, {"max_queue_tokens": 10})])
def test_stream_whose_client_does_not_read_is_no_waiting_request(policy: dict[str, float],
                                                                 limits: dict[str, int]) -> None:
    """Regression: it counted as one that waits for its turn, so the next request was rejected beside free places."""
    tenant = Tenant("other", **limits)
    core = make_full_scheduler(-1, tenant, **policy)
    core.suspend(1, 0.0)
    core.complete_step(1, StepResult(1, 0.01, {number: StepResultRow((9,), (0.0,)) for number in (1, 2, 3)}, {}), {},
                       0.0)
    core.plan(0.0)
    assert core.sequences[1].state is SequenceState.WAITING
    assert predict_wait(core, tenant) == 0.0
    assert isinstance(submit(core, tenant=tenant), RequestAccepted)


def test_streams_whose_clients_do_not_read_do_not_make_others_wait() -> None:
    core, other = make_full_scheduler(3), make_full_scheduler(7, max_queue_requests=7)
    for number in (5, 7, 9, 11):
        other.suspend(number, 0.0)
    assert predict_wait(other, DEFAULT_TENANT) == predict_wait(core, DEFAULT_TENANT) > 0.0
    assert all(isinstance(submit(other), RequestAccepted) for _ in range(4))
    assert "7 requests wait, --max-queue-requests is 7" in get_rejection(other).reason


def test_stream_whose_client_reads_again_is_a_waiting_request() -> None:
    core = make_full_scheduler(max_queue_requests=3)
    core.suspend(6, 0.0)
    core.resume(6, 0.0)
    assert "3 requests wait, --max-queue-requests is 3" in get_rejection(core).reason


def test_request_that_cannot_start_in_time_is_rejected_at_once() -> None:
    event = get_rejection(make_full_scheduler(), timeout=0.1)
    assert "x-request-timeout-ms is 100" in event.reason
    assert isinstance(submit(make_full_scheduler(), timeout=100.0), RequestAccepted)


@pytest.mark.parametrize(("limits", "words"), [
    ({"max_concurrent_requests": 7},
     "the limit of concurrent requests of other is reached (its `max_concurrent_requests` is 7)"),
    ({"max_queue_requests": 3}, "3 requests of other wait, its `max_queue_requests` is 3"),
    ({"max_queue_tokens": 350}, "400 prompt tokens of other would wait, its `max_queue_tokens` is 350"),
])
def test_tenant_has_its_own_limits(limits: dict[str, int], words: str) -> None:
    tenant = Tenant("other", **limits)
    core = make_full_scheduler(tenant=tenant)
    assert words in get_rejection(core, tenant=tenant).reason
    assert isinstance(submit(core), RequestAccepted)


def test_longer_queue_has_a_longer_predicted_wait() -> None:
    short, long = make_full_scheduler(3, max_queue_requests=3), make_full_scheduler(30, max_queue_requests=30)
    assert predict_wait(long, DEFAULT_TENANT) > predict_wait(short, DEFAULT_TENANT) > 0
    assert get_rejection(long).retry_after > 0


def test_tenant_below_its_fair_share_has_a_shorter_predicted_wait() -> None:
    core, quiet = make_full_scheduler(30), Tenant("quiet")
    assert predict_wait(core, quiet) == 0.0
    for _ in range(3):
        submit(core, tenant=quiet)
    assert 0.0 < predict_wait(core, quiet) < 0.5 * predict_wait(core, DEFAULT_TENANT)
