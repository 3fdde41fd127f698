"""Pooling requests through the core: the members of their steps, and the order of scheduling."""

from dataclasses import replace

import pytest

from router.model_info import ModelInfo, StepMeasurement
from router.request import FinishReason, LoadableResource, Request, RequestKind, Tenant
from router.scheduler.cost_model import CostModel
from router.scheduler.events import SequenceExpired, SequenceFailed, SequenceFinished
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import PoolingStep, StepPlan, StepResult, StepResultRow

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64, embeddings=True, classification=True)
# A step takes a millisecond, and another one for every ten tokens.
STEP_MEASUREMENTS = (StepMeasurement(1, 0, 1, 0.001), StepMeasurement(1, 100, 100, 0.011),
                     StepMeasurement(1, 1000, 1000, 0.101))


def make_scheduler(**settings: object) -> Scheduler:
    core = Scheduler(replace(SchedulerSettings(max_stall_seconds=10.0, look_ahead=1), **settings), MODEL_INFO)  # type: ignore[arg-type]
    core.on_shards_ready(MODEL_INFO, 1, 0.0)
    return core


def submit(core: Scheduler, kind: RequestKind = RequestKind.EMBED, length: int = 20, now: float = 0.0,
           **request_fields: object) -> int:
    output = 8 if kind is RequestKind.GENERATE else 0
    request = Request("r", (7,) * length, output, kind=kind, **request_fields)  # type: ignore[arg-type]
    return core.submit(request, now)[0].sequence_id  # type: ignore[union-attr, return-value]


def run_step(core: Scheduler, now: float = 0.0, **failures: str) -> tuple[StepPlan, list[object]]:
    plan = core.plan(now)
    assert plan is not None
    rows = {number: StepResultRow((9,), (0.0,)) for number in plan.output_ids}
    reasons = {int(name[1:]): reason for name, reason in failures.items()}
    return plan, [*core.complete_step(plan.last_message_number,
                                      StepResult(plan.epoch, plan.predicted_seconds, rows, reasons), {}, now)]


def get_request_kind(plan: StepPlan) -> RequestKind:
    last = plan.messages[-1]
    return last.kind if isinstance(last, PoolingStep) else RequestKind.GENERATE


def test_pooling_step_takes_all_that_fit_and_finishes_them() -> None:
    core = make_scheduler(max_prefill_tokens=64)
    numbers = [submit(core) for _ in range(4)]
    plan, events = run_step(core)
    assert plan.member_ids == tuple(numbers[:3])
    assert events == [SequenceFinished(number, FinishReason.LENGTH) for number in numbers[:3]]
    assert core.num_unfinished == 1


def test_pooling_step_respects_the_maximum_batch_size() -> None:
    core = make_scheduler(max_batch_size=2)
    numbers = [submit(core) for _ in range(3)]
    assert run_step(core)[0].member_ids == tuple(numbers[:2])


def test_pooling_step_has_one_request_kind_chosen_by_the_first() -> None:
    core = make_scheduler()
    first, second, third = (submit(core, RequestKind.CLASSIFY), submit(core, RequestKind.EMBED),
                            submit(core, RequestKind.CLASSIFY))
    assert run_step(core)[0].member_ids == (first, third)
    assert run_step(core)[0].member_ids == (second,)


def test_pooling_step_uses_no_blocks_and_no_batch() -> None:
    core = make_scheduler()
    submit(core)
    core.plan(0.0)
    assert core.running.block_pool.num_free == core.running.block_pool.num_blocks
    assert not len(core.running)


def test_earliest_request_decides_between_generation_and_pooling() -> None:
    core = make_scheduler()
    submit(core, RequestKind.GENERATE)
    submit(core, RequestKind.EMBED, now=0.1)
    assert [get_request_kind(run_step(core, 0.2)[0]) for _ in range(3)] == [RequestKind.GENERATE, RequestKind.EMBED,
                                                                            RequestKind.GENERATE]


def test_generation_gets_one_step_between_two_pooling_steps() -> None:
    core = make_scheduler(max_batch_size=1)
    submit(core, RequestKind.GENERATE)
    run_step(core)
    for _ in range(3):
        submit(core, RequestKind.EMBED)
    kinds = [get_request_kind(run_step(core)[0]) for _ in range(6)]
    assert kinds == [RequestKind.EMBED, RequestKind.GENERATE] * 3


def test_pooling_request_does_not_wait_behind_requests_that_need_capacity() -> None:
    core = make_scheduler(max_batch_size=1)
    submit(core, RequestKind.GENERATE)
    run_step(core)
    waiting, embedded = submit(core, RequestKind.GENERATE, now=0.1), submit(core, RequestKind.EMBED, now=0.2)
    assert run_step(core, 0.3)[0].member_ids == (embedded,)
    assert core.get_request_timeline(waiting).phase is RequestPhase.QUEUE


def test_pooling_beyond_the_stall_limit_runs_after_decodes_took_half_its_time() -> None:
    core = make_scheduler(max_stall_seconds=0.002)
    core.cost_model = CostModel.from_measurements(STEP_MEASUREMENTS)
    submit(core, RequestKind.GENERATE)
    decode = run_step(core)[0].predicted_seconds
    for text in (submit(core, length=50, now=0.1), submit(core, length=50, now=0.2)):
        held_up = 0.0
        while get_request_kind(plan := run_step(core, 0.3)[0]) is RequestKind.GENERATE:
            held_up += plan.predicted_seconds
        assert plan.member_ids == (text,)
        assert plan.predicted_seconds < 2 * held_up + 2 * decode
        assert plan.predicted_seconds > 2 * held_up - 2 * decode


def test_time_earned_by_a_cancelled_pooling_request_is_not_kept() -> None:
    core = make_scheduler(max_stall_seconds=0.002)
    core.cost_model = CostModel.from_measurements(STEP_MEASUREMENTS)
    core.submit(Request("r", (7,) * 20, 100), 0.0)
    run_step(core)
    submit(core, length=50, now=0.1)
    num_waits = 0
    while get_request_kind(run_step(core, 0.2)[0]) is RequestKind.GENERATE:
        num_waits += 1
    run_step(core)  # generation has one step between two pooling steps
    leaver = submit(core, length=50, now=0.3)
    assert [get_request_kind(run_step(core, 0.3)[0]) for _ in range(num_waits)] == [RequestKind.GENERATE] * num_waits
    core.cancel(leaver, 0.3)
    run_step(core, 0.3)
    submit(core, length=50, now=0.4)
    assert get_request_kind(run_step(core, 0.4)[0]) is RequestKind.GENERATE


def test_stall_limit_does_not_apply_without_decodes() -> None:
    core = make_scheduler(max_stall_seconds=0.0)
    core.cost_model = CostModel.from_measurements(STEP_MEASUREMENTS)
    numbers = [submit(core, length=1000) for _ in range(3)]
    assert run_step(core)[0].member_ids == tuple(numbers)


def test_pooling_input_longer_than_a_step_fails_at_once() -> None:
    core = make_scheduler(max_prefill_tokens=64)
    events = core.submit(Request("r", (7,) * 65, 0, kind=RequestKind.EMBED), 0.0)
    assert events[1:] == [SequenceFailed(1, "65 tokens do not fit a step of 64 (--max-batch-prefill-tokens)")]


def test_pooling_input_may_be_longer_than_the_kv_cache() -> None:
    core = make_scheduler()
    number = submit(core, length=64 * 16 + 1)
    assert run_step(core)[0].member_ids == (number,)


def test_pooling_failure_affects_only_its_own_request() -> None:
    core = make_scheduler()
    first, second = submit(core), submit(core)
    _, events = run_step(core, s1="its numbers are none")
    assert events == [SequenceFailed(first, "its numbers are none"), SequenceFinished(second, FinishReason.LENGTH)]


def test_request_cancelled_during_its_pooling_step_gets_no_event() -> None:
    core = make_scheduler()
    first, second = submit(core), submit(core)
    plan = core.plan(0.0)
    assert plan is not None
    core.cancel(first, 0.0)
    events = core.complete_step(plan.last_message_number, StepResult(1, 0.01, {}, {}), {}, 0.1)
    assert events == [SequenceFinished(second, FinishReason.LENGTH)]


def test_pooling_request_runs_again_after_a_shard_loss() -> None:
    core = make_scheduler()
    number = submit(core)
    core.plan(0.0)
    core.on_shards_lost(ShardLossReason.DEATH, 0.1)
    core.on_shards_ready(MODEL_INFO, 2, 0.2)
    plan, events = run_step(core, 0.3)
    assert (plan.epoch, plan.member_ids) == (2, (number,))
    assert events == [SequenceFinished(number, FinishReason.LENGTH)]


def test_faulty_pooling_request_is_found_by_bisection() -> None:
    core = make_scheduler()
    numbers = [submit(core) for _ in range(4)]
    sizes, failed = [], []
    for epoch in range(2, 10):
        while (plan := core.plan(0.0)) is not None:
            sizes.append(len(plan.member_ids))
            if numbers[2] in plan.member_ids:
                failed += core.on_shards_lost(ShardLossReason.STEP_ERROR, 0.0)
                core.on_shards_ready(MODEL_INFO, epoch, 0.0)
                break
            core.complete_step(plan.last_message_number, StepResult(core._epoch or 0, 0.01, {}, {}), {}, 0.0)
    assert failed == [SequenceFailed(numbers[2], "the step failed with this request alone")]
    assert sizes == [4, 2, 2, 1, 1]
    assert not core.num_unfinished


def test_waiting_pooling_request_times_out() -> None:
    core = make_scheduler()
    submit(core, timeout=1.0)
    core.on_shards_lost(ShardLossReason.DEATH, 0.5)
    (event,) = core.on_timer(1.0)
    assert isinstance(event, SequenceExpired)


def test_pooling_request_waits_for_its_adapter() -> None:
    core, adapter = make_scheduler(), LoadableResource("adapter", 3)
    number = submit(core, adapter=adapter)
    assert core.plan(0.0) is None
    assert core.get_request_timeline(number).phase is RequestPhase.ADAPTER
    core.on_resource_loaded(adapter, 0.1)
    assert run_step(core, 0.2)[0].member_ids == (number,)


@pytest.mark.parametrize("kind", [RequestKind.EMBED, RequestKind.CLASSIFY])
def test_tenant_is_charged_for_pooling_and_the_other_goes_first(kind: RequestKind) -> None:
    core = make_scheduler(max_batch_size=1)
    first_tenant, second_tenant = Tenant("one"), Tenant("two")
    first, second = submit(core, kind, tenant=first_tenant), submit(core, kind, tenant=first_tenant, now=0.1)
    third, fourth = submit(core, kind, tenant=second_tenant, now=0.2), submit(core, kind, tenant=second_tenant, now=0.3)
    assert [run_step(core, 0.4)[0].member_ids[0] for _ in range(4)] == [first, third, second, fourth]


def test_pooling_does_not_change_the_output_length_forecast() -> None:
    """Pooling requests do not change what the forecast learned about output lengths."""
    core = make_scheduler()
    learned = core._wait_forecast._recent_allowed_tokens
    submit(core)
    run_step(core)
    assert core._wait_forecast._recent_allowed_tokens == learned
