"""Tests of static groups through the core: which sequences run together, and what the others wait for."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from support.scheduling.simulated_world import add_block_hashes

from router.model_info import ModelInfo
from router.request import Request, RequestKind
from router.scheduler.events import SequenceFinished
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Prefill, StepPlan, StepResult, StepResultRow
from router.scheduler.waiting_queue import WaitingQueue

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64, embeddings=True)


def make_scheduler(**settings: float) -> Scheduler:
    core = Scheduler(replace(SchedulerSettings(max_stall_seconds=10.0, look_ahead=1, static=True), **settings),
                     MODEL_INFO)
    core.on_shards_ready(MODEL_INFO, 1, 0.0)
    return core


def submit(core: Scheduler, prompt: int = 20, output: int = 3, now: float = 0.0, **request_fields: object) -> int:
    """Submit a request and return its sequence's number; prompts differ unless a `word` is given."""
    word = request_fields.pop("word", 100 + core.num_unfinished)
    request = add_block_hashes(Request(str(now), (word,) * prompt, output, **request_fields), 16)  # type: ignore[arg-type]
    return core.submit(request, now)[0].sequence_id  # type: ignore[union-attr, return-value]


def complete_and_get_finished(core: Scheduler, plan: StepPlan, now: float) -> list[int]:
    """Answer the plan with a token for each sequence and return the finished ones."""
    rows = {number: StepResultRow((9,), (0.0,)) for number in plan.output_ids}
    events = core.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, {}), {}, now)
    return [event.sequence_id for event in events if isinstance(event, SequenceFinished)]


def run_and_get_groups(core: Scheduler, now: float = 0.0, running: frozenset[int] = frozenset()) -> list[set[int]]:
    """Run until no sequence can start and return the groups in order, beginning with the `running` one."""
    groups = [set(running)] if running else []
    while (plan := core.plan(now)) is not None:
        started = get_new_sequences(plan)
        if started and not running:
            groups.append(set())
        groups[-1] |= started
        running = (running | started) - frozenset(complete_and_get_finished(core, plan, now))
    return groups


def get_new_sequences(plan: StepPlan) -> set[int]:
    return {one.sequence_id for message in plan.messages if isinstance(message, Prefill)
            for one in message.new_sequences}


def test_later_request_waits_for_the_whole_group() -> None:
    core = make_scheduler()
    first, long = submit(core, output=2), submit(core, output=5)
    complete_and_get_finished(core, plan := core.plan(0.0), 0.0)  # type: ignore[arg-type]
    assert get_new_sequences(plan) == {first, long}  # type: ignore[arg-type]
    late = submit(core, now=0.1)
    for _ in range(4):
        complete_and_get_finished(core, plan := core.plan(0.1), 0.1)  # type: ignore[arg-type]
        assert not get_new_sequences(plan)  # type: ignore[arg-type]
        assert core.get_request_timeline(late).phase is RequestPhase.STATIC_GROUP
    assert run_and_get_groups(core, 0.2) == [{late}]


def test_group_size_is_limited_to_the_batch_size() -> None:
    core = make_scheduler(max_batch_size=3)
    numbers = [submit(core) for _ in range(7)]
    assert run_and_get_groups(core) == [set(numbers[:3]), set(numbers[3:6]), set(numbers[6:])]


def test_first_request_waits_for_others_during_the_window() -> None:
    core = make_scheduler(static_window_seconds=0.5)
    first = submit(core, now=1.0)
    assert core.plan(1.1) is None
    assert (core.get_request_timeline(first).phase, core.wake_at) == (RequestPhase.STATIC_GROUP, 1.5)
    second = submit(core, now=1.4)
    assert core.plan(1.45) is None
    core.on_timer(1.5)
    assert core.wake_at is None
    assert run_and_get_groups(core, 1.5) == [{first, second}]


def test_full_group_starts_before_the_window_ends() -> None:
    core = make_scheduler(static_window_seconds=60.0, max_batch_size=2)
    numbers = [submit(core), submit(core)]
    assert run_and_get_groups(core) == [set(numbers)]


def test_equal_lengths_mode_groups_only_equal_requests() -> None:
    core = make_scheduler(static_equal_lengths=True)
    first, longer_output, like_first, longer_prompt = (
        submit(core), submit(core, output=4), submit(core), submit(core, prompt=21))
    assert run_and_get_groups(core) == [{first, like_first}, {longer_output}, {longer_prompt}]


def test_equal_lengths_mode_waits_for_equal_requests() -> None:
    core = make_scheduler(static_equal_lengths=True, static_window_seconds=1.0, max_batch_size=2)
    first = submit(core)
    submit(core, output=4)
    assert core.plan(0.1) is None
    like_first = submit(core, now=0.2)
    assert run_and_get_groups(core, 0.2)[0] == {first, like_first}


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("stall", [10.0, 0.0])
@pytest.mark.parametrize("prompt", [60, 64, 100])
def test_group_with_prompts_over_several_steps_stays_one_group(prompt: int, stall: float, mixed: bool) -> None:
    core = make_scheduler(max_prefill_tokens=64, max_stall_seconds=stall, mixed=mixed)
    numbers = [submit(core, prompt=prompt, output=40) for _ in range(3)]
    plan = core.plan(0.0)
    assert plan is not None
    begun = get_new_sequences(plan)
    assert begun < set(numbers)
    complete_and_get_finished(core, plan, 0.0)
    late = submit(core, now=0.1)
    assert run_and_get_groups(core, 0.1, frozenset(begun)) == [set(numbers), {late}]


def test_suspended_sequence_stays_in_its_group() -> None:
    core = make_scheduler()
    first, second = submit(core, output=9), submit(core, output=9)
    complete_and_get_finished(core, core.plan(0.0), 0.0)  # type: ignore[arg-type]
    core.suspend(first, 0.1)
    complete_and_get_finished(core, core.plan(0.1), 0.1)  # type: ignore[arg-type]
    core.resume(first, 0.2)
    late = submit(core, now=0.2)
    plan = core.plan(0.2)
    assert plan is not None
    assert get_new_sequences(plan) == {first}
    assert plan.member_ids == (second, first)
    complete_and_get_finished(core, plan, 0.2)
    assert run_and_get_groups(core, 0.3, frozenset({first, second})) == [{first, second}, {late}]


def test_requests_of_the_next_group_do_not_fit() -> None:
    """Regression: a long prompt beside one decode got as much time as if all of them waited for it."""
    core = make_scheduler()
    submit(core)
    complete_and_get_finished(core, core.plan(0.0), 0.0)  # type: ignore[arg-type]
    submit(core, now=0.1)
    assert core.num_fitting() == 0


def test_waiting_members_of_the_group_fit() -> None:
    core = make_scheduler()
    numbers = [submit(core, output=9) for _ in range(3)]
    complete_and_get_finished(core, core.plan(0.0), 0.0)  # type: ignore[arg-type]
    submit(core, now=0.1)
    core.suspend(numbers[0], 0.1)
    complete_and_get_finished(core, core.plan(0.1), 0.1)  # type: ignore[arg-type]
    assert core.num_fitting() == 0
    core.resume(numbers[0], 0.2)
    assert core.num_fitting() == 1


def test_requests_that_may_still_join_the_group_fit() -> None:
    core = make_scheduler(max_batch_size=4)
    for _ in range(3):
        submit(core, prompt=40, word=7)
    complete_and_get_finished(core, core.plan(0.0), 0.0)  # type: ignore[arg-type]
    for _ in range(5):
        submit(core, now=0.1)
    assert core.policy.num_places_left
    assert core.num_fitting() == 2


def test_request_waiting_for_a_shared_prefix_stays_in_its_group() -> None:
    core = make_scheduler()
    numbers = [submit(core, prompt=40, word=7) for _ in range(3)]
    assert run_and_get_groups(core) == [set(numbers)]


def test_request_that_does_not_fit_waits_for_the_next_group() -> None:
    core = make_scheduler(max_prefill_tokens=4096)
    numbers = [submit(core, prompt=300, output=8) for _ in range(4)]
    assert run_and_get_groups(core) == [set(numbers[:3]), set(numbers[3:])]


def test_full_group_of_others_does_not_end_the_window_of_the_first_request() -> None:
    core = make_scheduler(static_equal_lengths=True, static_window_seconds=60.0, max_batch_size=2)
    first = submit(core, output=4)
    others = [submit(core, now=0.1), submit(core, now=0.2)]
    assert run_and_get_groups(core, 0.3) == [set(others)]
    assert core.wake_at == 60.0
    like_first = submit(core, output=4, now=0.4)
    assert run_and_get_groups(core, 0.4) == [{first, like_first}]


def test_equal_requests_are_found_behind_many_others() -> None:
    core = make_scheduler(static_equal_lengths=True, max_batch_size=8, max_concurrent_requests=1000)
    first, *_ = [submit(core), *(submit(core, output=4) for _ in range(100))]
    equals = [submit(core) for _ in range(7)]
    assert run_and_get_groups(core)[0] == {first, *equals}


def test_suspended_request_does_not_block_a_group() -> None:
    core = make_scheduler(static_window_seconds=1.0)
    held = submit(core, now=0.0)
    core.suspend(held, 0.0)
    reader = submit(core, now=5.0)
    assert core.plan(5.1) is None
    assert run_and_get_groups(core, 6.0) == [{reader}]


def test_pooling_request_belongs_to_no_group() -> None:
    core = make_scheduler()
    submit(core, output=9)
    complete_and_get_finished(core, core.plan(0.0), 0.0)  # type: ignore[arg-type]
    text = submit(core, output=0, now=0.1, kind=RequestKind.EMBED)
    plan = core.plan(0.1)
    assert plan is not None
    assert plan.member_ids == (text,)


def test_continuous_batching_does_not_scan_the_queue() -> None:
    """Scanning the queue would take time in proportion to its length."""
    core = make_scheduler(static=False, max_batch_size=1)
    numbers = [submit(core) for _ in range(3)]
    plan = core.plan(0.0)
    assert plan is not None
    assert get_new_sequences(plan) == {numbers[0]}
    with patch.object(WaitingQueue, "iter_unsuspended", side_effect=AssertionError):
        core.policy.prepare(0.0)
