"""Scheduler and requests with shared prefixes, for tests of the prefix cache. Step results are made up.

    core = make_prefix_scheduler(look_ahead=1)
    number = submit_prompt(core, make_prompt_tokens(48))
    assert run_until_idle(core) == {number: 0}
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from support.scheduling.simulated_world import add_block_hashes

from router.model_info import ModelInfo
from router.request import Request, Tenant
from router.scheduler.events import RequestAccepted, SchedulerEvent
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import NewSequence, Prefill, StepPlan, StepResult, StepResultRow

BLOCK_SIZE = 16
END_TOKEN = 1
DEFAULT_MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, BLOCK_SIZE, 64)
TENANTS = {name: Tenant(name) for name in ("one", "two")}


def make_prompt_tokens(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 31 + index * 7) % 500 + 2 for index in range(length))


def make_prefix_scheduler(num_blocks: int = 64, tokens_per_step: int = 1, **settings: Any) -> Scheduler:
    model_info = replace(DEFAULT_MODEL_INFO, num_blocks=num_blocks, tokens_per_step=tokens_per_step)
    new_scheduler = Scheduler(replace(SchedulerSettings(max_stall_seconds=10.0), **settings), model_info)
    new_scheduler.on_shards_ready(model_info, 1, 0.0)
    return new_scheduler


def submit_prompt(scheduler: Scheduler, prompt: Iterable[int], max_new_tokens: int = 8, now: float = 0.0,
                  tenant: str = "one", **request_fields: Any) -> int:
    request = Request(str(now), tuple(prompt), max_new_tokens, end_tokens=frozenset({END_TOKEN}),
                      tenant=TENANTS[tenant], **request_fields)
    (entered,) = scheduler.submit(add_block_hashes(request, BLOCK_SIZE), now)
    assert isinstance(entered, RequestAccepted)
    return entered.sequence_id


def complete_plan(core: Scheduler, plan: StepPlan, token: int = 7, failed: Iterable[int] = ()) -> list[SchedulerEvent]:
    failures = dict.fromkeys(failed, "not a number")
    rows = {number: StepResultRow((token,), (0.0,)) for number in plan.output_ids if number not in failures}
    return core.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, failures), {}, 0.0)


def get_new_sequences(plan: StepPlan) -> dict[int, NewSequence]:
    return {n.sequence_id: n for message in plan.messages if isinstance(message, Prefill)
            for n in message.new_sequences}


def get_cached_counts(plan: StepPlan) -> dict[int, int]:
    """Return the number of cached tokens of each newcomer."""
    return {number: newcomer.num_cached_tokens for number, newcomer in get_new_sequences(plan).items()}


def run_until_idle(core: Scheduler) -> dict[int, int]:
    """Run steps until there is nothing to do; return the number of cached tokens of each newcomer."""
    cached_counts: dict[int, int] = {}
    while (plan := core.plan(0.0)) is not None:
        cached_counts |= get_cached_counts(plan)
        complete_plan(core, plan)
    return cached_counts
