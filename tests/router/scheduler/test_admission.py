"""Tests of router/scheduler/admission.py through the core: rejections, their reasons, and when to retry."""

from dataclasses import replace

import pytest

from router.request import ANYONE, Request, Tenant
from router.scheduler.events import Entered, Refused
from router.scheduler.plan import Measurement, ModelFacts
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy

STEPS = tuple(Measurement(rows, tokens, 16 * rows + tokens, 0.01 + 1e-4 * rows + 1e-4 * tokens)
              for rows, tokens in ((1, 0), (8, 0), (32, 0), (1, 64), (1, 512)))
FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 1000, measurements=STEPS)


def crowded(num_waiting: int = 3, tenant: Tenant = ANYONE, **policy: float) -> Scheduler:
    """Return a core with a full batch and `num_waiting` requests in the queue."""
    core = Scheduler(replace(Policy(max_batch_size=4, stall_seconds=10.0), **policy), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    for number in range(4 + num_waiting):
        assert isinstance(ask(core, str(number), tenant=tenant), Entered)
    core.plan(0.0)
    return core


def ask(core: Scheduler, name: str = "x", **more: object) -> object:
    fields = {"tenant": ANYONE} | more
    return core.submit(Request(name, (7,) * 100, 50, **fields), 0.0)[0]  # type: ignore[arg-type]


def refused(core: Scheduler, **more: object) -> Refused:
    event = ask(core, **more)
    assert isinstance(event, Refused)
    return event


def test_a_full_house_takes_nobody() -> None:
    reason = refused(crowded(max_concurrent_requests=7)).reason
    assert "7 requests are in the house (--max-concurrent-requests 7)" in reason


@pytest.mark.parametrize(("policy", "words"), [
    ({"max_queue_requests": 3}, "3 requests wait, --max-queue-requests is 3"),
    ({"max_queue_tokens": 350}, "400 prompt tokens would wait, --max-queue-tokens is 350"),
    ({"max_queue_seconds": 0.5}, "--max-queue-ms is 500"),
])
def test_what_waits_is_bounded(policy: dict[str, float], words: str) -> None:
    event = refused(crowded(**policy))
    assert words in event.reason
    assert event.retry_after > 0


def test_what_can_start_with_the_next_step_does_not_count_as_waiting() -> None:
    core = Scheduler(replace(Policy(max_batch_size=8), max_queue_requests=1, max_queue_tokens=10), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    assert all(isinstance(ask(core), Entered) for _ in range(8))


def test_who_cannot_start_in_time_is_told_so_at_once() -> None:
    event = refused(crowded(), timeout=0.1)
    assert "x-request-timeout-ms is 100" in event.reason
    assert isinstance(ask(crowded(), timeout=100.0), Entered)


@pytest.mark.parametrize(("limits", "words"), [
    ({"max_concurrent_requests": 7}, "7 requests of other are in the house, its `max_concurrent_requests` is 7"),
    ({"max_queue_requests": 3}, "3 requests of other wait, its `max_queue_requests` is 3"),
    ({"max_queue_tokens": 350}, "400 prompt tokens of other would wait, its `max_queue_tokens` is 350"),
])
def test_a_tenant_has_limits_of_its_own(limits: dict[str, int], words: str) -> None:
    tenant = Tenant("other", **limits)
    core = crowded(tenant=tenant)
    assert words in refused(core, tenant=tenant).reason
    assert isinstance(ask(core), Entered)


def test_a_longer_queue_is_worth_coming_back_later() -> None:
    short, long = crowded(3, max_queue_requests=3), crowded(30, max_queue_requests=30)
    assert long._admission.predicted_wait(ANYONE) > short._admission.predicted_wait(ANYONE) > 0
    assert refused(long).retry_after > 0


def test_others_make_way_for_who_has_less_than_its_share() -> None:
    core, quiet = crowded(30), Tenant("quiet")
    assert core._admission.predicted_wait(quiet) == 0.0
    for _ in range(3):
        ask(core, tenant=quiet)
    assert 0.0 < core._admission.predicted_wait(quiet) < 0.5 * core._admission.predicted_wait(ANYONE)
