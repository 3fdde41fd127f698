"""Pooling requests through the core: the members of their steps, and the order of scheduling."""

from dataclasses import replace

import pytest

from router.request import FinishReason, Request, Resource, Tenant, Wish
from router.scheduler.cost_model import CostModel
from router.scheduler.events import Expired, Failed, Finished
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, AnswerRow, Embed, Measurement, ModelFacts, Plan
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.scheduler.timeline import Cause

FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64, embeddings=True, classification=True)
# A step takes a millisecond, and another one for every ten tokens.
COSTS = (Measurement(1, 0, 1, 0.001), Measurement(1, 100, 100, 0.011), Measurement(1, 1000, 1000, 0.101))


def made(**policy: object) -> Scheduler:
    core = Scheduler(replace(Policy(stall_seconds=10.0, look_ahead=1), **policy), FACTS)  # type: ignore[arg-type]
    core.shards_ready(FACTS, 1, 0.0)
    return core


def ask(core: Scheduler, wish: Wish = Wish.VECTOR, length: int = 20, now: float = 0.0, **more: object) -> int:
    output = 8 if wish is Wish.TEXT else 0
    request = Request("r", (7,) * length, output, wish=wish, **more)  # type: ignore[arg-type]
    return core.submit(request, now)[0].sequence  # type: ignore[union-attr, return-value]


def step(core: Scheduler, now: float = 0.0, **failed: str) -> tuple[Plan, list[object]]:
    plan = core.plan(now)
    assert plan is not None
    rows = {number: AnswerRow((9,), (0.0,)) for number in plan.expects}
    reasons = {int(name[1:]): why for name, why in failed.items()}
    return plan, [*core.complete(plan.order, Answer(plan.epoch, plan.seconds, rows, reasons), {}, now)]


def wish_of(plan: Plan) -> Wish:
    last = plan.messages[-1]
    return last.wish if isinstance(last, Embed) else Wish.TEXT


def test_a_step_takes_as_many_as_fit_and_ends_them() -> None:
    core = made(max_prefill_tokens=64)
    numbers = [ask(core) for _ in range(4)]
    plan, events = step(core)
    assert plan.members == tuple(numbers[:3])
    assert events == [Finished(number, FinishReason.LENGTH) for number in numbers[:3]]
    assert core.num_unfinished == 1


def test_a_step_takes_no_more_than_a_batch_may_have() -> None:
    core = made(max_batch_size=2)
    numbers = [ask(core) for _ in range(3)]
    assert step(core)[0].members == tuple(numbers[:2])


def test_a_step_is_for_one_wish_and_the_first_says_for_which() -> None:
    core = made()
    first, second, third = ask(core, Wish.LABELS), ask(core, Wish.VECTOR), ask(core, Wish.LABELS)
    assert step(core)[0].members == (first, third)
    assert step(core)[0].members == (second,)


def test_it_takes_no_blocks_and_stands_in_no_batch() -> None:
    core = made()
    ask(core)
    core.plan(0.0)
    assert core.running.blocks.num_free == core.running.blocks.count
    assert not len(core.running)


def test_the_first_decides_whether_text_is_generated_or_texts_are_read() -> None:
    core = made()
    ask(core, Wish.TEXT)
    ask(core, Wish.VECTOR, now=0.1)
    assert [wish_of(step(core, 0.2)[0]) for _ in range(3)] == [Wish.TEXT, Wish.VECTOR, Wish.TEXT]


def test_between_two_steps_of_texts_those_who_generate_have_one() -> None:
    core = made(max_batch_size=1)
    ask(core, Wish.TEXT)
    step(core)
    for _ in range(3):
        ask(core, Wish.VECTOR)
    wishes = [wish_of(step(core)[0]) for _ in range(6)]
    assert wishes == [Wish.VECTOR, Wish.TEXT] * 3


def test_who_needs_no_room_does_not_wait_behind_who_needs_some() -> None:
    core = made(max_batch_size=1)
    ask(core, Wish.TEXT)
    step(core)
    waiting, embedded = ask(core, Wish.TEXT, now=0.1), ask(core, Wish.VECTOR, now=0.2)
    assert step(core, 0.3)[0].members == (embedded,)
    assert core.story(waiting).cause is Cause.QUEUE


def test_a_text_that_breaks_the_stall_promise_runs_alone_once_decodes_held_it_up_for_half_its_time() -> None:
    core = made(stall_seconds=0.002)
    core.costs = CostModel.measured(COSTS)
    ask(core, Wish.TEXT)
    decode = step(core)[0].seconds
    for text in (ask(core, length=50, now=0.1), ask(core, length=50, now=0.2)):
        held_up = 0.0
        while wish_of(plan := step(core, 0.3)[0]) is Wish.TEXT:
            held_up += plan.seconds
        assert plan.members == (text,)
        assert plan.seconds < 2 * held_up + 2 * decode
        assert plan.seconds > 2 * held_up - 2 * decode


def test_what_a_text_earned_that_left_is_not_for_the_next() -> None:
    core = made(stall_seconds=0.002)
    core.costs = CostModel.measured(COSTS)
    core.submit(Request("r", (7,) * 20, 100), 0.0)
    step(core)
    ask(core, length=50, now=0.1)
    num_waits = 0
    while wish_of(step(core, 0.2)[0]) is Wish.TEXT:
        num_waits += 1
    step(core)  # generation has one step between two pooling steps
    leaver = ask(core, length=50, now=0.3)
    assert [wish_of(step(core, 0.3)[0]) for _ in range(num_waits)] == [Wish.TEXT] * num_waits
    core.cancel(leaver, 0.3)
    step(core, 0.3)
    ask(core, length=50, now=0.4)
    assert wish_of(step(core, 0.4)[0]) is Wish.TEXT


def test_while_nobody_decodes_the_promise_binds_nobody() -> None:
    core = made(stall_seconds=0.0)
    core.costs = CostModel.measured(COSTS)
    numbers = [ask(core, length=1000) for _ in range(3)]
    assert step(core)[0].members == tuple(numbers)


def test_what_is_longer_than_a_step_fails_at_once() -> None:
    core = made(max_prefill_tokens=64)
    events = core.submit(Request("r", (7,) * 65, 0, wish=Wish.VECTOR), 0.0)
    assert events[1:] == [Failed(1, "65 tokens do not fit a step of 64 (--max-batch-prefill-tokens)")]


def test_it_may_be_longer_than_the_cache() -> None:
    core = made()
    number = ask(core, length=64 * 16 + 1)
    assert step(core)[0].members == (number,)


def test_who_fails_fails_alone() -> None:
    core = made()
    first, second = ask(core), ask(core)
    _, events = step(core, s1="its numbers are none")
    assert events == [Failed(first, "its numbers are none"), Finished(second, FinishReason.LENGTH)]


def test_who_left_while_it_was_read_is_told_nothing() -> None:
    core = made()
    first, second = ask(core), ask(core)
    plan = core.plan(0.0)
    assert plan is not None
    core.cancel(first, 0.0)
    events = core.complete(plan.order, Answer(1, 0.01, {}, {}), {}, 0.1)
    assert events == [Finished(second, FinishReason.LENGTH)]


def test_who_was_under_way_when_the_shards_were_lost_is_read_again() -> None:
    core = made()
    number = ask(core)
    core.plan(0.0)
    core.shards_lost(0.1, Loss.DEATH)
    core.shards_ready(FACTS, 2, 0.2)
    plan, events = step(core, 0.3)
    assert (plan.epoch, plan.members) == (2, (number,))
    assert events == [Finished(number, FinishReason.LENGTH)]


def test_of_texts_whose_step_fails_the_guilty_one_is_found_by_halves() -> None:
    core = made()
    numbers = [ask(core) for _ in range(4)]
    sizes, failed = [], []
    for epoch in range(2, 10):
        while (plan := core.plan(0.0)) is not None:
            sizes.append(len(plan.members))
            if numbers[2] in plan.members:
                failed += core.shards_lost(0.0, Loss.STEP_ERROR)
                core.shards_ready(FACTS, epoch, 0.0)
                break
            core.complete(plan.order, Answer(core._epoch or 0, 0.01, {}, {}), {}, 0.0)
    assert failed == [Failed(numbers[2], "the step failed with this request alone")]
    assert sizes == [4, 2, 2, 1, 1]
    assert not core.num_unfinished


def test_its_time_runs_out_while_it_waits() -> None:
    core = made()
    ask(core, timeout=1.0)
    core.shards_lost(0.5, Loss.DEATH)
    (event,) = core.expire(1.0)
    assert isinstance(event, Expired)


def test_it_waits_for_its_adapter() -> None:
    core, adapter = made(), Resource("adapter", 3)
    number = ask(core, adapter=adapter)
    assert core.plan(0.0) is None
    assert core.story(number).cause is Cause.ADAPTER
    core.available(adapter, 0.1)
    assert step(core, 0.2)[0].members == (number,)


@pytest.mark.parametrize("wish", [Wish.VECTOR, Wish.LABELS])
def test_a_tenant_pays_for_it_and_the_other_goes_first(wish: Wish) -> None:
    core = made(max_batch_size=1)
    one, two = Tenant("one"), Tenant("two")
    first, second = ask(core, wish, tenant=one), ask(core, wish, tenant=one, now=0.1)
    third, other = ask(core, wish, tenant=two, now=0.2), ask(core, wish, tenant=two, now=0.3)
    assert [step(core, 0.4)[0].members[0] for _ in range(4)] == [first, third, second, other]


def test_a_server_that_only_reads_texts_goes_on_for_ever() -> None:
    """Pooling requests do not change what the forecast learned about output lengths."""
    core = made()
    learned = core._forecast._allowed
    ask(core)
    step(core)
    assert core._forecast._allowed == learned
