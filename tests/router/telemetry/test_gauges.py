"""Gauges of a core's current state."""

import time
from dataclasses import replace

import pytest

from router.model_info import ModelInfo
from router.request import LoadableResource, Request
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow
from router.telemetry.server_metrics import ServerMetrics, adapter_gauges, scheduler_gauges
from router.text.prompt_encoder import TokenLimits

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, block_size=16, num_blocks=64)
LIMITS = TokenLimits(63, 64)
NAMESPACE, BLOCK_HASH = b"somebody", b"the first block"


def make_scheduler(*prompt_lengths: int) -> Scheduler:
    """Return a core with a request for each prompt length in the queue; two may run."""
    core = Scheduler(SchedulerSettings(max_batch_size=2, look_ahead=1, max_stall_seconds=0.25), MODEL_INFO)
    core.on_shards_ready(MODEL_INFO, 1, 0.0)
    for index, length in enumerate(prompt_lengths):
        core.submit(Request(str(index), (1,) * length, 8, cache_namespace=NAMESPACE,
                            block_hashes=(BLOCK_HASH,)[:length // 16]), 0.0)
    return core


def run_step(core: Scheduler) -> None:
    plan = core.plan(0.0)
    assert plan is not None
    rows = {number: StepResultRow((7,), (0.0,)) for number in plan.output_ids}
    core.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, {}), {}, 0.0)


def read_gauges(core: Scheduler, *names: str) -> list[float]:
    readings = scheduler_gauges(core)
    return [readings[name][()] for name in names]


def test_gauges_of_an_idle_scheduler_are_zero() -> None:
    core = make_scheduler()
    assert read_gauges(core, "tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens",
                       "vllm:kv_cache_usage_perc") == [0, 0, 0, 0]
    assert read_gauges(core, "tgi_batch_max_total_tokens", "tgi_batch_max_stall_duration") == [1024, 0.25]
    assert scheduler_gauges(core)["vllm:cache_config_info"] == {("16", "64"): 1}


def test_waiting_and_running_requests_are_reported() -> None:
    core = make_scheduler(5, 5, 5)
    run_step(core)
    assert read_gauges(core, "tgi_queue_size", "vllm:num_requests_waiting") == [1, 1]
    assert read_gauges(core, "tgi_batch_current_size", "vllm:num_requests_running") == [2, 2]


def test_requests_are_counted_by_phase() -> None:
    core = make_scheduler(5, 5, 5)
    run_step(core)
    core.plan(0.0)  # the third finds the batch full
    current = scheduler_gauges(core)["tgi_request_current"]
    assert {cause: count for cause, count in current.items() if count} == {("decode",): 2, ("batch",): 1}
    core.on_shards_lost(ShardLossReason.DEFECT, 0.0)
    assert scheduler_gauges(core)["tgi_request_current"]["shards",] == 3


def test_blocks_are_counted_by_state() -> None:
    core = make_scheduler(40)
    run_step(core)
    assert scheduler_gauges(core)["tgi_cache_blocks"] == {("held",): 3, ("kept",): 0, ("free",): 61}
    assert read_gauges(core, "tgi_batch_current_max_tokens") == [48]
    assert read_gauges(core, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc") == [3 / 64, 3 / 64]
    core.cancel(1, 0.0)
    assert scheduler_gauges(core)["tgi_cache_blocks"] == {("held",): 0, ("kept",): 2, ("free",): 62}


@pytest.mark.parametrize(("is_ready", "has_shards"), [(True, True), (False, True), (False, False)])
def test_health_gauges_are_one_or_zero(is_ready: bool, has_shards: bool) -> None:
    page = ServerMetrics(make_scheduler(), LIMITS, 1).render(is_ready=is_ready, has_shards=has_shards)
    assert f"\ntgi_ready {int(is_ready)}\n" in page
    assert f"\ntgi_shard_ready {int(has_shards)}\n" in page


def test_lora_info_gauge_exists_without_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1.75e9)
    page = ServerMetrics(make_scheduler(), LIMITS, 1).render(is_ready=True, has_shards=True)
    assert ('vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} 1750000000\n'
            in page)


def test_adapters_are_counted_by_state_and_named_by_their_requests() -> None:
    core = Scheduler(SchedulerSettings(max_active_adapters=3, look_ahead=1), MODEL_INFO)
    core.on_shards_ready(replace(MODEL_INFO, adapter_bytes=1000), 1, 0.0)
    for number, name in ((1, "b"), (1, "a"), (2, "c"), (2, "")):
        core.submit(Request(str(number), (1,), 8, adapter=LoadableResource("adapter", number, 100), adapter_name=name),
                    0.0)
    core.on_timer(0.0)
    core.on_resource_loaded(LoadableResource("adapter", 1, 100), 0.0)
    run_step(core)
    assert adapter_gauges(core, 5.0) == {
        "weft_adapters": {("loading",): 1, ("loaded",): 1, ("unloading",): 0},
        "weft_adapter_bytes": {(): 200},
        "vllm:lora_requests_info": {("3", "a,b", "c"): 5.0}}


def test_adapters_that_wait_loaded_for_their_next_request_are_named_as_running() -> None:
    """The gateway prefers a replica with the adapter on its shards, whatever name its client knows."""
    core = Scheduler(SchedulerSettings(max_active_adapters=3, look_ahead=1), MODEL_INFO)
    core.on_shards_ready(replace(MODEL_INFO, adapter_bytes=1000), 1, 0.0)
    idle, coming = LoadableResource("adapter", 1, 100), LoadableResource("adapter", 2, 100)
    core.on_resource_loaded(idle, 0.0)
    core.submit(Request("1", (1,), 8, adapter=coming, adapter_name="loom"), 0.0)
    core.on_timer(0.0)
    names = {idle: ("warp", "w"), coming: ("loom", "l"), LoadableResource("adapter", 3, 1): ("absent",)}
    assert adapter_gauges(core, 5.0, names)["vllm:lora_requests_info"] == {("3", "w,warp", "l,loom"): 5.0}


def test_name_with_a_comma_is_not_in_the_list_that_the_gateway_splits_at_commas() -> None:
    core = Scheduler(SchedulerSettings(max_active_adapters=3, look_ahead=1), MODEL_INFO)
    core.on_shards_ready(replace(MODEL_INFO, adapter_bytes=1000), 1, 0.0)
    core.on_resource_loaded(LoadableResource("adapter", 1, 100), 0.0)
    names = {LoadableResource("adapter", 1, 100): ("warp,weft", "warp")}
    assert adapter_gauges(core, 5.0, names)["vllm:lora_requests_info"] == {("3", "warp", ""): 5.0}
