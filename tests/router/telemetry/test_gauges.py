"""Gauges of a core's current state."""

from dataclasses import replace

import pytest

from router.request import Request, Resource
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, AnswerRow, ModelFacts
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.telemetry import gauges

FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, block_size=16, num_blocks=64)
SPACE, NAME = b"somebody", b"the first block"


def core_with(*prompts: int) -> Scheduler:
    """Return a core with a request for each prompt length in the queue; two may run."""
    core = Scheduler(Policy(max_batch_size=2, look_ahead=1, stall_seconds=0.25), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    for index, length in enumerate(prompts):
        core.submit(Request(str(index), (1,) * length, 8, namespace=SPACE, block_hashes=(NAME,)[:length // 16]), 0.0)
    return core


def step(core: Scheduler) -> None:
    plan = core.plan(0.0)
    assert plan is not None
    rows = {number: AnswerRow((7,), (0.0,)) for number in plan.expects}
    core.complete(plan.order, Answer(plan.epoch, 0.01, rows, {}), {}, 0.0)


def told(core: Scheduler, *names: str) -> list[float]:
    readings = gauges.of_core(core)
    return [readings[name][()] for name in names]


def test_an_empty_house() -> None:
    core = core_with()
    assert told(core, "tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens",
                "vllm:kv_cache_usage_perc") == [0, 0, 0, 0]
    assert told(core, "tgi_batch_max_total_tokens", "tgi_batch_max_stall_duration") == [1024, 0.25]
    assert gauges.of_core(core)["vllm:cache_config_info"] == {("16", "64"): 1}


def test_who_waits_and_who_runs() -> None:
    core = core_with(5, 5, 5)
    step(core)
    assert told(core, "tgi_queue_size", "vllm:num_requests_waiting") == [1, 1]
    assert told(core, "tgi_batch_current_size", "vllm:num_requests_running") == [2, 2]


def test_requests_are_counted_by_what_their_time_goes_to() -> None:
    core = core_with(5, 5, 5)
    step(core)
    core.plan(0.0)  # the third finds the batch full
    current = gauges.of_core(core)["tgi_request_current"]
    assert {cause: count for cause, count in current.items() if count} == {("decode",): 2, ("batch",): 1}
    core.shards_lost(0.0, Loss.DEFECT)
    assert gauges.of_core(core)["tgi_request_current"]["shards",] == 3


def test_blocks_are_held_kept_or_free() -> None:
    core = core_with(40)
    step(core)
    assert gauges.of_core(core)["tgi_cache_blocks"] == {("held",): 3, ("kept",): 0, ("free",): 61}
    assert told(core, "tgi_batch_current_max_tokens") == [48]
    assert told(core, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc") == [3 / 64, 3 / 64]
    core.cancel(1, 0.0)
    assert gauges.of_core(core)["tgi_cache_blocks"] == {("held",): 0, ("kept",): 2, ("free",): 62}


@pytest.mark.parametrize(("is_ready", "has_shards"), [(True, True), (False, True), (False, False)])
def test_health_is_one_or_zero(is_ready: bool, has_shards: bool) -> None:
    assert gauges.of_health(is_ready=is_ready, has_shards=has_shards) == {
        "tgi_ready": {(): is_ready}, "tgi_shard_ready": {(): has_shards}}


def test_there_is_one_line_about_adapters() -> None:
    assert gauges.of_adapters(1.75e9) == {"vllm:lora_requests_info": {("0", "", ""): 1.75e9}}


def test_adapters_are_counted_by_how_things_are_with_them_and_named_by_who_goes_by_them() -> None:
    core = Scheduler(Policy(max_active_adapters=3, look_ahead=1), FACTS)
    core.shards_ready(replace(FACTS, adapter_bytes=1000), 1, 0.0)
    for number, name in ((1, "b"), (1, "a"), (2, "c"), (2, "")):
        core.submit(Request(str(number), (1,), 8, adapter=Resource("adapter", number, 100), adapter_name=name), 0.0)
    core.expire(0.0)
    core.available(Resource("adapter", 1, 100), 0.0)
    step(core)
    assert gauges.of_residents(core, 5.0) == {
        "weft_adapters": {("coming",): 1, ("here",): 1, ("leaving",): 0},
        "weft_adapter_bytes": {(): 200},
        "vllm:lora_requests_info": {("3", "a,b", "c"): 5.0}}
