"""Tests of router/scheduler/waiting_sequence_selector.py through the core: which sequence starts next, and what the
others wait for."""

from collections import deque
from dataclasses import replace

from support.scheduling.simulated_world import add_block_hashes

from router.model_info import ModelInfo
from router.request import DEFAULT_TENANT, LoadableResource, Request, Tenant
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Prefill, StepPlan, StepResult, StepResultRow

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64)
ADAPTER = LoadableResource("adapter", 1)


def make_scheduler(**settings: float) -> Scheduler:
    core = Scheduler(replace(SchedulerSettings(max_stall_seconds=10.0, look_ahead=1), **settings), MODEL_INFO)
    core.on_shards_ready(MODEL_INFO, 1, 0.0)
    return core


def submit(core: Scheduler, prompt: int = 40, output: int = 8, now: float = 0.0, prompt_token: int = 7,
           **request_fields: object) -> int:
    request = add_block_hashes(Request(str(now), (prompt_token,) * prompt, output, **request_fields), 16)  # type: ignore[arg-type]
    return core.submit(request, now)[0].sequence_id  # type: ignore[union-attr, return-value]


def run_step(core: Scheduler, now: float = 0.0) -> StepPlan:
    plan = core.plan(now)
    assert plan is not None
    rows = {number: StepResultRow((9,), (0.0,)) for number in plan.output_ids}
    core.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, {}), {}, now)
    return plan


def get_new_sequences(plan: StepPlan) -> list[int]:
    return [one.sequence_id for message in plan.messages if isinstance(message, Prefill)
            for one in message.new_sequences]


def get_phase(core: Scheduler, number: int) -> RequestPhase:
    return core.get_request_timeline(number).phase


def make_full_scheduler(num_ahead: int = 1, **settings: float) -> Scheduler:
    """Return a core with a batch size of one, taken by a sequence that ends with the next step."""
    core = make_scheduler(max_batch_size=1, **settings)
    submit(core, prompt=40, output=2)
    run_step(core)
    return core


def test_request_with_a_cached_prompt_may_go_first() -> None:
    core = make_full_scheduler()
    first, cached = submit(core, prompt_token=8, now=1.0), submit(core, prompt_token=7, now=1.1)
    run_step(core, 1.2)
    assert get_new_sequences(run_step(core, 1.3)) == [cached]
    assert get_phase(core, first) is RequestPhase.BATCH_FULL


def test_request_is_not_passed_over_longer_than_the_limit() -> None:
    core = make_full_scheduler(max_passed_over_seconds=2.0)
    first, _ = submit(core, prompt_token=8, now=1.0), submit(core, prompt_token=7, now=1.1)
    run_step(core, 1.2)
    assert get_new_sequences(run_step(core, 3.0)) == [first]


def test_tenant_with_the_least_service_goes_first() -> None:
    core, other_tenant = make_scheduler(max_batch_size=2), Tenant("other")
    submit(core, output=100)
    submit(core, output=100, tenant=other_tenant, prompt=10)
    run_step(core)
    run_step(core)
    submit(core, now=1.0)
    less = submit(core, now=1.1, tenant=other_tenant)
    core.cancel(1, 1.2)
    assert get_new_sequences(run_step(core, 1.3)) == [less]


def test_phase_names_what_a_request_waits_for() -> None:
    core = make_scheduler(max_batch_size=4)
    whole = [submit(core, prompt=700, output=200), submit(core, prompt=600, output=100, prompt_token=8)]
    stuck, held, behind = submit(core, adapter=ADAPTER), submit(core), submit(core, now=0.1)
    core.suspend(held, 0.0)
    run_step(core)
    assert [get_phase(core, number) for number in whole] == [RequestPhase.DECODE, RequestPhase.NO_FREE_BLOCKS]
    assert [get_phase(core, number)
            for number in (stuck, held, behind)] == [RequestPhase.ADAPTER, RequestPhase.SLOW_CLIENT, RequestPhase.QUEUE]
    core.cancel(whole[1], 0.2)
    run_step(core, 0.2)
    assert get_phase(core, stuck) is RequestPhase.ADAPTER


def test_first_request_of_each_tenant_waits_for_the_suspects_of_a_failed_step() -> None:
    core = make_scheduler()
    suspects = [submit(core, prompt_token=1), submit(core, prompt_token=2, now=0.1)]
    core.plan(0.2)
    core.on_shards_lost(ShardLossReason.STEP_ERROR, 0.3)
    core.on_shards_ready(MODEL_INFO, 2, 0.3)
    behind = submit(core, prompt_token=3, now=0.4)
    other = submit(core, prompt_token=4, now=0.5, tenant=Tenant("other"))
    assert get_new_sequences(run_step(core, 0.6)) == suspects[:1]
    assert [get_phase(core, number) for number in (suspects[1], behind, other)] == [
        RequestPhase.FAULT_ISOLATION, RequestPhase.QUEUE, RequestPhase.FAULT_ISOLATION]
    assert get_new_sequences(run_step(core, 0.7)) == suspects[1:]
    assert get_phase(core, behind) is RequestPhase.FAULT_ISOLATION
    assert sorted(get_new_sequences(run_step(core, 0.8))) == [behind, other]


def test_phase_of_fault_isolation_ends_with_the_isolation() -> None:
    core = make_scheduler(max_batch_size=2)
    submit(core, prompt_token=1)
    submit(core, prompt_token=2, now=0.1)
    core.plan(0.2)
    core.on_shards_lost(ShardLossReason.STEP_ERROR, 0.3)
    core.on_shards_ready(MODEL_INFO, 2, 0.3)
    behind = submit(core, prompt_token=3, now=0.4)
    run_step(core, 0.5)
    run_step(core, 0.6)
    assert get_phase(core, behind) is RequestPhase.FAULT_ISOLATION
    urgent = submit(core, prompt_token=4, now=0.7, priority=1)
    run_step(core, 0.8)
    assert [get_phase(core, number) for number in (urgent, behind)] == [RequestPhase.BATCH_FULL, RequestPhase.QUEUE]


def test_request_overtaken_by_a_higher_priority_keeps_waiting() -> None:
    core = make_full_scheduler()
    first = submit(core, now=1.0, prompt_token=8)
    core.plan(1.0)
    urgent = submit(core, now=1.1, priority=1, prompt_token=9)
    core.complete_step(2, StepResult(1, 0.01, {1: StepResultRow((9,), (0.0,))}, {}), {}, 1.2)
    assert get_phase(core, first) is RequestPhase.BATCH_FULL
    assert get_new_sequences(run_step(core, 1.3)) == [urgent]
    assert get_phase(core, first) is RequestPhase.BATCH_FULL


def test_prompts_beyond_the_step_budget_wait_for_it() -> None:
    core = make_scheduler(max_prefill_tokens=64)
    first, second = submit(core, prompt=60), submit(core, prompt=60, prompt_token=8)
    run_step(core)
    assert [get_phase(core, number) for number in (first, second)] == [RequestPhase.DECODE, RequestPhase.PREFILL_BUDGET]


def test_tenant_without_running_requests_preempts_others() -> None:
    core, quiet = make_scheduler(max_batch_size=3), Tenant("quiet")
    flood = [submit(core, output=100, prompt_token=number) for number in range(5)]
    run_step(core)
    newcomer = submit(core, now=1.0, tenant=quiet)
    assert get_new_sequences(run_step(core, 1.1)) == [newcomer]
    assert RequestPhase.PREEMPTED in core.get_request_timeline(flood[2]).seconds_by_phase(2.0)
    assert [sequence.id for sequence in core.running] == [*flood[:2], newcomer]


def test_sequence_is_not_preempted_for_its_own_tenant() -> None:
    core = make_scheduler(max_batch_size=3)
    for number in range(5):
        submit(core, output=100, prompt_token=number)
    run_step(core)
    run_step(core, 1.0)
    assert not [sequence for sequence in core.sequences if sequence.num_preemptions]
    assert DEFAULT_TENANT.name not in core.selector._queue.tenants or len(core.running) == 3


def test_preempted_sequences_are_not_kept_when_they_have_ended() -> None:
    model_info = replace(MODEL_INFO, num_blocks=12, block_size=4)
    core = Scheduler(SchedulerSettings(max_stall_seconds=10.0, reserved_block_fraction=0.0), model_info)
    core.on_shards_ready(model_info, 1, 0.0)
    for number in range(3):
        core.submit(Request(str(number), (1,) * 12, 16), 0.0)
    plans, num_preempted = deque[StepPlan](), 0
    while core.num_unfinished:
        while (plan := core.plan(0.0)) is not None:
            plans.append(plan)
            num_preempted = max(num_preempted, len(core.selector.preempted))
        plan = plans.popleft()
        rows = {number: StepResultRow((7,), (0.0,)) for number in plan.output_ids}
        core.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, {}), {}, 0.0)
    assert num_preempted
    core.plan(0.0)
    assert not core.selector.preempted
