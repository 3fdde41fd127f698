"""Values of the gauges, computed from the scheduler's state whenever a page of metrics is made."""

from collections import Counter

from router.scheduler.resource_cache import ABSENT
from router.scheduler.scheduler import Scheduler
from router.scheduler.timeline import RUNNING
from router.telemetry.families import ADAPTER_STATES, CAUSES
from router.telemetry.instruments import Reading


def of_core(core: Scheduler) -> dict[str, Reading]:
    blocks, waiting = core.running.blocks, core.num_waiting()
    held = blocks.count - blocks.num_free
    causes = Counter(str(sequence.story.cause) for sequence in core.sequences)
    usage = held / blocks.count
    return {
        "tgi_request_current": {(cause,): causes[cause] for cause in CAUSES},
        "tgi_batch_max_stall_duration": plain(core.policy.stall_seconds),
        "tgi_batch_current_size": plain(len(core.running)),
        "tgi_batch_current_max_tokens": plain(held * blocks.size),
        "tgi_batch_max_total_tokens": plain(blocks.count * blocks.size),
        "tgi_queue_size": plain(waiting),
        "tgi_cache_blocks": {("held",): held, ("kept",): blocks.num_kept, ("free",): blocks.num_free - blocks.num_kept},
        "vllm:num_requests_waiting": plain(waiting),
        "vllm:num_requests_running": plain(core.num_unfinished - waiting),
        "vllm:kv_cache_usage_perc": plain(usage),
        "vllm:gpu_cache_usage_perc": plain(usage),
        "vllm:cache_config_info": {(str(blocks.size), str(blocks.count)): 1},
    }


def of_health(*, is_ready: bool, has_shards: bool) -> dict[str, Reading]:
    return {"tgi_ready": plain(is_ready), "tgi_shard_ready": plain(has_shards)}


def of_adapters(since: float) -> dict[str, Reading]:
    """Return the gauges of a server without adapters; `since` is the Unix time of its start."""
    return {"vllm:lora_requests_info": {("0", "", ""): since}}


def of_residents(core: Scheduler, now: float) -> dict[str, Reading]:
    """Return the gauges of a server with adapters. `now` is Unix time."""
    here = {resource: standing.state for resource, standing in core.adapters.items() if standing.state != ABSENT}
    states = Counter(here.values())
    named = [(sequence.request.adapter_name, sequence.story.cause in RUNNING) for sequence in core.sequences]
    running, waiting = (",".join(sorted({name for name, runs in named if name and runs is wanted}))
                        for wanted in (True, False))
    return {
        "weft_adapters": {(state,): states[state] for state in ADAPTER_STATES},
        "weft_adapter_bytes": plain(sum(resource.takes for resource in here)),
        "vllm:lora_requests_info": {(str(core.policy.max_active_adapters), running, waiting): now},
    }


def plain(value: float) -> Reading:
    """Return the reading of a gauge without labels."""
    return {(): value}
