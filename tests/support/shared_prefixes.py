"""Scheduler and requests with shared prefixes, for tests of the prefix cache. Step results are made up.

    core = scheduler(look_ahead=1)
    number = submit(core, text(48))
    assert run(core) == {number: 0}
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from support.simulated_world import named

from router.request import Request, Tenant
from router.scheduler.events import Entered, Event
from router.scheduler.plan import Answer, AnswerRow, ModelFacts, Newcomer, Plan, Prefill
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy

SIZE = 16
END = 1
FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, SIZE, 64)
TENANTS = {name: Tenant(name) for name in ("one", "two")}


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 31 + index * 7) % 500 + 2 for index in range(length))


def scheduler(num_blocks: int = 64, tokens_per_step: int = 1, **policy: Any) -> Scheduler:
    facts = replace(FACTS, num_blocks=num_blocks, tokens_per_step=tokens_per_step)
    core = Scheduler(replace(Policy(stall_seconds=10.0), **policy), facts)
    core.shards_ready(facts, 1, 0.0)
    return core


def submit(core: Scheduler, prompt: Iterable[int], output: int = 8, now: float = 0.0, tenant: str = "one",
           **fields: Any) -> int:
    request = Request(str(now), tuple(prompt), output, end_tokens=frozenset({END}), tenant=TENANTS[tenant], **fields)
    (entered,) = core.submit(named(request, SIZE), now)
    assert isinstance(entered, Entered)
    return entered.sequence


def complete(core: Scheduler, plan: Plan, token: int = 7, failed: Iterable[int] = ()) -> list[Event]:
    failures = dict.fromkeys(failed, "not a number")
    rows = {number: AnswerRow((token,), (0.0,)) for number in plan.expects if number not in failures}
    return core.complete(plan.order, Answer(plan.epoch, 0.01, rows, failures), {}, 0.0)


def newcomers(plan: Plan) -> dict[int, Newcomer]:
    return {n.sequence: n for message in plan.messages if isinstance(message, Prefill) for n in message.newcomers}


def cached(plan: Plan) -> dict[int, int]:
    """Return the number of cached tokens of each newcomer."""
    return {number: newcomer.num_cached for number, newcomer in newcomers(plan).items()}


def run(core: Scheduler) -> dict[int, int]:
    """Run steps until there is nothing to do; return the number of cached tokens of each newcomer."""
    found: dict[int, int] = {}
    while (plan := core.plan(0.0)) is not None:
        found |= cached(plan)
        complete(core, plan)
    return found
