"""Tests of RecomputePolicy in router/scheduler/baseline_policies.py through the core.

Every step recomputes prompts and generated tokens.
"""

from dataclasses import replace

from support.scheduling.simulated_world import add_block_hashes

from router.model_info import ModelInfo
from router.request import Request
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Filter, Prefill, StepPlan, StepResult, StepResultRow

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64)


def make_scheduler(num_blocks: int = 64, **settings: float) -> Scheduler:
    facts = replace(MODEL_INFO, num_blocks=num_blocks)
    core = Scheduler(replace(SchedulerSettings(look_ahead=1, recompute=True), **settings), facts)
    core.on_shards_ready(facts, 1, 0.0)
    return core


def submit(core: Scheduler, prompt: int = 20, output: int = 3) -> int:
    return core.submit(Request("a", (7,) * prompt, output), 0.0)[0].sequence_id  # type: ignore[union-attr, return-value]


def run_step(core: Scheduler) -> StepPlan:
    plan = core.plan(0.0)
    assert plan is not None
    rows = {number: StepResultRow((9,), (0.0,)) for number in plan.output_ids}
    core.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, {}), {}, 0.0)
    return plan


def get_chunk_lengths(plan: StepPlan) -> dict[int, int]:
    """Return the number of tokens computed by sequence; check that the step runs no decodes."""
    prefill = plan.messages[-1]
    assert isinstance(prefill, Prefill)
    assert not prefill.includes_decodes
    return {chunk.sequence_id: chunk.length for chunk in prefill.chunks}


def get_num_generated_at_entry(plan: StepPlan) -> dict[int, int]:
    """Return the number of tokens that each newcomer has generated already."""
    prefill = plan.messages[-1]
    assert isinstance(prefill, Prefill)
    return {one.sequence_id: len(one.generated) for one in prefill.new_sequences}


def test_every_step_sends_prompt_and_output_as_a_new_prompt() -> None:
    core = make_scheduler()
    first, second = submit(core, 20), submit(core, 30, output=2)
    assert [get_chunk_lengths(run_step(core)) for _ in range(2)] == [{first: 20, second: 30}, {first: 21, second: 31}]
    plan = run_step(core)
    assert (plan.messages[0], get_chunk_lengths(plan),
            get_num_generated_at_entry(plan)) == (Filter(2, ()), {first: 22}, {first: 2})
    assert [type(message) for message in core.plan(0.0).messages] == [Filter]  # type: ignore[union-attr]
    assert core.running.block_pool.num_free == 64


def test_recompute_ignores_the_prefix_cache() -> None:
    core = make_scheduler()
    for _ in range(2):
        core.submit(add_block_hashes(Request("a", (7,) * 40, 3), 16), 0.0)
    assert [list(get_chunk_lengths(run_step(core)).values()) for _ in range(3)] == [[40, 40], [41, 41], [42, 42]]


def test_new_sequence_joins_behind_the_others() -> None:
    core = make_scheduler()
    first = submit(core)
    run_step(core)
    second = submit(core)
    assert get_chunk_lengths(run_step(core)) == {first: 21, second: 20}


def test_batch_size_of_one_runs_sequences_one_after_another() -> None:
    core = make_scheduler(max_batch_size=1)
    first, second = submit(core), submit(core)
    assert [get_chunk_lengths(run_step(core)) for _ in range(4)] == [
        {first: 20}, {first: 21}, {first: 22}, {second: 20}]


def test_static_group_stays_closed() -> None:
    core = make_scheduler(static=True)
    first, second = submit(core), submit(core, output=2)
    run_step(core)
    late = submit(core)
    assert [set(get_chunk_lengths(run_step(core))) for _ in range(3)] == [{first, second}, {first}, {late}]


def test_sequences_beyond_the_step_limit_run_in_the_next_step() -> None:
    core = make_scheduler(max_prefill_tokens=48)
    first, second = submit(core, 40, 2), submit(core, 40, 2)
    assert sum(sum(get_chunk_lengths(run_step(core)).values()) for _ in range(4)) == 40 + 40 + 41 + 41
    assert core.plan(0.0) is None or core.num_unfinished == 0, (first, second)


def test_last_sequence_is_preempted_when_blocks_run_out() -> None:
    core = make_scheduler(num_blocks=5)
    first, second = submit(core, 31, output=8), submit(core, 31, output=8)
    previous = get_chunk_lengths(run_step(core))
    while len(lengths := get_chunk_lengths(run_step(core))) == 2:
        previous = lengths
    assert (set(previous), set(lengths)) == ({first, second}, {first})
    assert get_num_generated_at_entry(run_step(core)).keys() == {first}
    while core.num_unfinished:
        last = run_step(core)
    assert get_chunk_lengths(last).keys() == {second}


def test_every_token_is_delivered_once() -> None:
    core = make_scheduler()
    number = submit(core, output=5)
    lengths = [get_num_generated_at_entry(run_step(core))[number] for _ in range(5)]
    assert lengths == [0, 1, 2, 3, 4]
    assert not core.num_unfinished
