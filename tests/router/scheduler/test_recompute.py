"""Tests of router/scheduler/recompute.py through the core: every step recomputes prompts and generated tokens."""

from dataclasses import replace

from support.simulated_world import named

from router.request import Request
from router.scheduler.plan import Answer, AnswerRow, Filter, ModelFacts, Plan, Prefill
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy

FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64)


def made(num_blocks: int = 64, **policy: float) -> Scheduler:
    facts = replace(FACTS, num_blocks=num_blocks)
    core = Scheduler(replace(Policy(look_ahead=1, recompute=True), **policy), facts)
    core.shards_ready(facts, 1, 0.0)
    return core


def ask(core: Scheduler, prompt: int = 20, output: int = 3) -> int:
    return core.submit(Request("a", (7,) * prompt, output), 0.0)[0].sequence  # type: ignore[union-attr, return-value]


def step(core: Scheduler) -> Plan:
    plan = core.plan(0.0)
    assert plan is not None
    rows = {number: AnswerRow((9,), (0.0,)) for number in plan.expects}
    core.complete(plan.order, Answer(plan.epoch, 0.01, rows, {}), {}, 0.0)
    return plan


def chunks(plan: Plan) -> dict[int, int]:
    """Return the number of tokens computed by sequence; check that the step runs no decodes."""
    prefill = plan.messages[-1]
    assert isinstance(prefill, Prefill)
    assert not prefill.alongside
    return {chunk.sequence: chunk.length for chunk in prefill.chunks}


def entered(plan: Plan) -> dict[int, int]:
    """Return the number of tokens that each newcomer has generated already."""
    prefill = plan.messages[-1]
    assert isinstance(prefill, Prefill)
    return {one.sequence: len(one.generated) for one in prefill.newcomers}


def test_prompt_and_output_are_sent_as_a_fresh_prompt_in_every_step() -> None:
    core = made()
    one, two = ask(core, 20), ask(core, 30, output=2)
    assert [chunks(step(core)) for _ in range(2)] == [{one: 20, two: 30}, {one: 21, two: 31}]
    plan = step(core)
    assert (plan.messages[0], chunks(plan), entered(plan)) == (Filter(2, ()), {one: 22}, {one: 2})
    assert [type(message) for message in core.plan(0.0).messages] == [Filter]  # type: ignore[union-attr]
    assert core.running.blocks.num_free == 64


def test_nothing_is_found_in_the_cache() -> None:
    core = made()
    for _ in range(2):
        core.submit(named(Request("a", (7,) * 40, 3), 16), 0.0)
    assert [list(chunks(step(core)).values()) for _ in range(3)] == [[40, 40], [41, 41], [42, 42]]


def test_newcomers_join_at_the_next_token_behind_the_others() -> None:
    core = made()
    one = ask(core)
    step(core)
    two = ask(core)
    assert chunks(step(core)) == {one: 21, two: 20}


def test_one_at_a_time_runs_to_its_end() -> None:
    core = made(max_batch_size=1)
    one, two = ask(core), ask(core)
    assert [chunks(step(core)) for _ in range(4)] == [{one: 20}, {one: 21}, {one: 22}, {two: 20}]


def test_a_group_stays_one() -> None:
    core = made(static=True)
    one, two = ask(core), ask(core, output=2)
    step(core)
    late = ask(core)
    assert [set(chunks(step(core))) for _ in range(3)] == [{one, two}, {one}, {late}]


def test_a_step_that_cannot_hold_all_goes_on_with_the_next() -> None:
    core = made(max_prefill_tokens=48)
    one, two = ask(core, 40, 2), ask(core, 40, 2)
    assert sum(sum(chunks(step(core)).values()) for _ in range(4)) == 40 + 40 + 41 + 41
    assert core.plan(0.0) is None or core.num_unfinished == 0, (one, two)


def test_where_there_is_no_room_for_a_token_more_the_last_waits() -> None:
    core = made(num_blocks=5)
    one, two = ask(core, 31, output=8), ask(core, 31, output=8)
    both = chunks(step(core))
    while len(found := chunks(step(core))) == 2:
        both = found
    assert (set(both), set(found)) == ({one, two}, {one})
    assert entered(step(core)).keys() == {one}
    while core.num_unfinished:
        last = step(core)
    assert chunks(last).keys() == {two}


def test_every_token_is_heard_once() -> None:
    core = made()
    number = ask(core, output=5)
    lengths = [entered(step(core))[number] for _ in range(5)]
    assert lengths == [0, 1, 2, 3, 4]
    assert not core.num_unfinished
