"""Tests of static groups through the core: which sequences run together, and what the others wait for."""

from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from support.simulated_world import named

from router.request import Request, Wish
from router.scheduler.events import Finished
from router.scheduler.plan import Answer, AnswerRow, ModelFacts, Plan, Prefill
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.scheduler.timeline import Cause

FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64, embeddings=True)


def made(**policy: float) -> Scheduler:
    core = Scheduler(replace(Policy(stall_seconds=10.0, look_ahead=1, static=True), **policy), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    return core


def ask(core: Scheduler, prompt: int = 20, output: int = 3, now: float = 0.0, **more: object) -> int:
    """Submit a request and return its sequence's number; prompts differ unless a `word` is given."""
    word = more.pop("word", 100 + core.num_unfinished)
    request = named(Request(str(now), (word,) * prompt, output, **more), 16)  # type: ignore[arg-type]
    return core.submit(request, now)[0].sequence  # type: ignore[union-attr, return-value]


def answered(core: Scheduler, plan: Plan, now: float) -> list[int]:
    """Answer the plan with a token for each sequence and return the finished ones."""
    rows = {number: AnswerRow((9,), (0.0,)) for number in plan.expects}
    events = core.complete(plan.order, Answer(plan.epoch, 0.01, rows, {}), {}, now)
    return [event.sequence for event in events if isinstance(event, Finished)]


def groups(core: Scheduler, now: float = 0.0, running: frozenset[int] = frozenset()) -> list[set[int]]:
    """Run until no sequence can start and return the groups in order, beginning with the `running` one."""
    found = [set(running)] if running else []
    while (plan := core.plan(now)) is not None:
        started = newcomers(plan)
        if started and not running:
            found.append(set())
        found[-1] |= started
        running = (running | started) - frozenset(answered(core, plan, now))
    return found


def newcomers(plan: Plan) -> set[int]:
    return {one.sequence for message in plan.messages if isinstance(message, Prefill) for one in message.newcomers}


def test_who_comes_later_waits_for_the_whole_group() -> None:
    core = made()
    first, long = ask(core, output=2), ask(core, output=5)
    answered(core, plan := core.plan(0.0), 0.0)  # type: ignore[arg-type]
    assert newcomers(plan) == {first, long}  # type: ignore[arg-type]
    late = ask(core, now=0.1)
    for _ in range(4):
        answered(core, plan := core.plan(0.1), 0.1)  # type: ignore[arg-type]
        assert not newcomers(plan)  # type: ignore[arg-type]
        assert core.story(late).cause is Cause.GROUP
    assert groups(core, 0.2) == [{late}]


def test_no_more_run_together_than_may() -> None:
    core = made(max_batch_size=3)
    numbers = [ask(core) for _ in range(7)]
    assert groups(core) == [set(numbers[:3]), set(numbers[3:6]), set(numbers[6:])]


def test_the_first_waits_for_others_as_long_as_the_window_says() -> None:
    core = made(static_window=0.5)
    first = ask(core, now=1.0)
    assert core.plan(1.1) is None
    assert (core.story(first).cause, core.wake_at) == (Cause.GROUP, 1.5)
    second = ask(core, now=1.4)
    assert core.plan(1.45) is None
    core.expire(1.5)
    assert core.wake_at is None
    assert groups(core, 1.5) == [{first, second}]


def test_nobody_waits_once_as_many_are_there_as_may_run() -> None:
    core = made(static_window=60.0, max_batch_size=2)
    numbers = [ask(core), ask(core)]
    assert groups(core) == [set(numbers)]


def test_a_group_may_have_to_be_of_equals() -> None:
    core = made(static_equal_lengths=True)
    one, other, like_one, longer = (
        ask(core), ask(core, output=4), ask(core), ask(core, prompt=21))
    assert groups(core) == [{one, like_one}, {other}, {longer}]


def test_equals_are_waited_for_among_equals() -> None:
    core = made(static_equal_lengths=True, static_window=1.0, max_batch_size=2)
    one = ask(core)
    ask(core, output=4)
    assert core.plan(0.1) is None
    like_one = ask(core, now=0.2)
    assert groups(core, 0.2)[0] == {one, like_one}


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("stall", [10.0, 0.0])
@pytest.mark.parametrize("prompt", [60, 64, 100])
def test_a_group_whose_prompts_take_several_steps_is_one_all_the_same(prompt: int, stall: float, mixed: bool) -> None:
    core = made(max_prefill_tokens=64, stall_seconds=stall, mixed=mixed)
    numbers = [ask(core, prompt=prompt, output=40) for _ in range(3)]
    plan = core.plan(0.0)
    assert plan is not None
    begun = newcomers(plan)
    assert begun < set(numbers)
    answered(core, plan, 0.0)
    late = ask(core, now=0.1)
    assert groups(core, 0.1, frozenset(begun)) == [set(numbers), {late}]


def test_who_yielded_is_still_of_its_group() -> None:
    core = made()
    one, two = ask(core, output=9), ask(core, output=9)
    answered(core, core.plan(0.0), 0.0)  # type: ignore[arg-type]
    core.hold(one, 0.1)
    answered(core, core.plan(0.1), 0.1)  # type: ignore[arg-type]
    core.resume(one, 0.2)
    late = ask(core, now=0.2)
    plan = core.plan(0.2)
    assert plan is not None
    assert newcomers(plan) == {one}
    assert plan.members == (two, one)
    answered(core, plan, 0.2)
    assert groups(core, 0.3, frozenset({one, two})) == [{one, two}, {late}]


def test_who_waits_for_the_prompt_of_another_is_of_its_group() -> None:
    core = made()
    numbers = [ask(core, prompt=40, word=7) for _ in range(3)]
    assert groups(core) == [set(numbers)]


def test_whoever_does_not_fit_waits_for_the_next_group() -> None:
    core = made(max_prefill_tokens=4096)
    numbers = [ask(core, prompt=300, output=8) for _ in range(4)]
    assert groups(core) == [set(numbers[:3]), set(numbers[3:])]


def test_a_full_group_of_others_does_not_end_the_window_of_the_first() -> None:
    core = made(static_equal_lengths=True, static_window=60.0, max_batch_size=2)
    first = ask(core, output=4)
    others = [ask(core, now=0.1), ask(core, now=0.2)]
    assert groups(core, 0.3) == [set(others)]
    assert core.wake_at == 60.0
    like_first = ask(core, output=4, now=0.4)
    assert groups(core, 0.4) == [{first, like_first}]


def test_equals_are_found_however_many_others_wait_before_them() -> None:
    core = made(static_equal_lengths=True, max_batch_size=8, max_concurrent_requests=1000)
    first, *_ = [ask(core), *(ask(core, output=4) for _ in range(100))]
    equals = [ask(core) for _ in range(7)]
    assert groups(core)[0] == {first, *equals}


def test_who_does_not_read_holds_nobody_up() -> None:
    core = made(static_window=1.0)
    held = ask(core, now=0.0)
    core.hold(held, 0.0)
    reader = ask(core, now=5.0)
    assert core.plan(5.1) is None
    assert groups(core, 6.0) == [{reader}]


def test_a_text_to_be_embedded_belongs_to_no_group() -> None:
    core = made()
    ask(core, output=9)
    answered(core, core.plan(0.0), 0.0)  # type: ignore[arg-type]
    text = ask(core, output=0, now=0.1, wish=Wish.VECTOR)
    plan = core.plan(0.1)
    assert plan is not None
    assert plan.members == (text,)


def test_where_batching_is_continuous_nobody_is_looked_at() -> None:
    """Scanning the queue would take time in proportion to its length."""
    core = made(static=False, max_batch_size=1)
    numbers = [ask(core) for _ in range(3)]
    plan = core.plan(0.0)
    assert plan is not None
    assert newcomers(plan) == {numbers[0]}
    waiting = MagicMock()
    core._groups.arrange(waiting, 0.0)
    waiting.__iter__.assert_not_called()
