"""Tests of router/scheduler/selection.py through the core: which sequence starts next, and what the others wait for."""

from dataclasses import replace

from support.simulated_world import named

from router.request import ANYONE, Request, Resource, Tenant
from router.scheduler.plan import Answer, AnswerRow, ModelFacts, Plan, Prefill
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.scheduler.timeline import Cause

FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64)
ADAPTER = Resource("adapter", 1)


def made(**policy: float) -> Scheduler:
    core = Scheduler(replace(Policy(stall_seconds=10.0, look_ahead=1), **policy), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    return core


def ask(core: Scheduler, prompt: int = 40, output: int = 8, now: float = 0.0, word: int = 7, **more: object) -> int:
    request = named(Request(str(now), (word,) * prompt, output, **more), 16)  # type: ignore[arg-type]
    return core.submit(request, now)[0].sequence  # type: ignore[union-attr, return-value]


def step(core: Scheduler, now: float = 0.0) -> Plan:
    plan = core.plan(now)
    assert plan is not None
    rows = {number: AnswerRow((9,), (0.0,)) for number in plan.expects}
    core.complete(plan.order, Answer(plan.epoch, 0.01, rows, {}), {}, now)
    return plan


def newcomers(plan: Plan) -> list[int]:
    return [one.sequence for message in plan.messages if isinstance(message, Prefill) for one in message.newcomers]


def cause(core: Scheduler, number: int) -> Cause:
    return core.story(number).cause


def full(num_ahead: int = 1, **policy: float) -> Scheduler:
    """Return a core with a batch size of one, taken by a sequence that ends with the next step."""
    core = made(max_batch_size=1, **policy)
    ask(core, prompt=40, output=2)
    step(core)
    return core


def test_who_finds_its_prompt_in_the_cache_goes_first_for_a_while() -> None:
    core = full()
    first, cached = ask(core, word=8, now=1.0), ask(core, word=7, now=1.1)
    step(core, 1.2)
    assert newcomers(step(core, 1.3)) == [cached]
    assert cause(core, first) is Cause.BATCH


def test_nobody_is_passed_over_for_longer_than_the_bound() -> None:
    core = full(passed_over_seconds=2.0)
    first, _ = ask(core, word=8, now=1.0), ask(core, word=7, now=1.1)
    step(core, 1.2)
    assert newcomers(step(core, 3.0)) == [first]


def test_the_tenant_that_got_least_goes_first() -> None:
    core, other = made(max_batch_size=2), Tenant("other")
    ask(core, output=100)
    ask(core, output=100, tenant=other, prompt=10)
    step(core)
    step(core)
    ask(core, now=1.0)
    less = ask(core, now=1.1, tenant=other)
    core.cancel(1, 1.2)
    assert newcomers(step(core, 1.3)) == [less]


def test_who_waits_is_told_what_for() -> None:
    core = made(max_batch_size=4)
    whole = [ask(core, prompt=700, output=200), ask(core, prompt=600, output=100, word=8)]
    stuck, held, behind = ask(core, adapter=ADAPTER), ask(core), ask(core, now=0.1)
    core.hold(held, 0.0)
    step(core)
    assert [cause(core, number) for number in whole] == [Cause.DECODE, Cause.BLOCKS]
    assert [cause(core, number) for number in (stuck, held, behind)] == [Cause.ADAPTER, Cause.READER, Cause.QUEUE]
    core.cancel(whole[1], 0.2)
    step(core, 0.2)
    assert cause(core, stuck) is Cause.ADAPTER


def test_who_is_not_first_any_more_waits_for_its_turn() -> None:
    core = full()
    first = ask(core, now=1.0, word=8)
    core.plan(1.0)
    urgent = ask(core, now=1.1, priority=1, word=9)
    core.complete(2, Answer(1, 0.01, {1: AnswerRow((9,), (0.0,))}, {}), {}, 1.2)
    assert cause(core, first) is Cause.BATCH
    assert newcomers(step(core, 1.3)) == [urgent]
    assert cause(core, first) is Cause.BATCH


def test_prompts_that_exceed_the_step_wait_for_the_budget() -> None:
    core = made(max_prefill_tokens=64)
    one, other = ask(core, prompt=60), ask(core, prompt=60, word=8)
    step(core)
    assert [cause(core, number) for number in (one, other)] == [Cause.DECODE, Cause.BUDGET]


def test_a_tenant_that_runs_nothing_does_not_wait_for_others_to_end() -> None:
    core, quiet = made(max_batch_size=3), Tenant("quiet")
    flood = [ask(core, output=100, word=number) for number in range(5)]
    step(core)
    newcomer = ask(core, now=1.0, tenant=quiet)
    assert newcomers(step(core, 1.1)) == [newcomer]
    assert Cause.YIELDED in core.story(flood[2]).seconds(2.0)
    assert [sequence.number for sequence in core.running] == [*flood[:2], newcomer]


def test_nobody_makes_way_for_its_own_tenant() -> None:
    core = made(max_batch_size=3)
    for number in range(5):
        ask(core, output=100, word=number)
    step(core)
    step(core, 1.0)
    assert not [sequence for sequence in core.sequences if sequence.num_yields]
    assert ANYONE.name not in core._turns._queue.tenants or len(core.running) == 3
