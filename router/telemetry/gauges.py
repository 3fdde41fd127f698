"""Values of the gauges, computed from the scheduler's state whenever a page of metrics is made."""

from collections import Counter

from router.scheduler.loadable_resource_cache import ABSENT_STATUS
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RUNNING_PHASES
from router.telemetry.instruments import GaugeValues
from router.telemetry.metric_definitions import ADAPTER_STATES, PHASE_NAMES


def scheduler_gauges(scheduler: Scheduler) -> dict[str, GaugeValues]:
    blocks, num_waiting = scheduler.running.block_pool, scheduler.num_waiting()
    num_held = blocks.num_blocks - blocks.num_free
    phase_counts = Counter(str(sequence.timeline.phase) for sequence in scheduler.sequences)
    usage = num_held / blocks.num_blocks
    return {
        "tgi_request_current": {(cause,): phase_counts[cause] for cause in PHASE_NAMES},
        "tgi_batch_max_stall_duration": {(): scheduler.settings.max_stall_seconds},
        "tgi_batch_current_size": {(): len(scheduler.running)},
        "tgi_batch_current_max_tokens": {(): num_held * blocks.block_size},
        "tgi_batch_max_total_tokens": {(): blocks.num_blocks * blocks.block_size},
        "tgi_queue_size": {(): num_waiting},
        "tgi_cache_blocks": {("held",): num_held, ("kept",): blocks.num_evictable,
                             ("free",): blocks.num_free - blocks.num_evictable},
        "vllm:num_requests_waiting": {(): num_waiting},
        "vllm:num_requests_running": {(): scheduler.num_unfinished - num_waiting},
        "vllm:kv_cache_usage_perc": {(): usage},
        "vllm:gpu_cache_usage_perc": {(): usage},
        "vllm:cache_config_info": {(str(blocks.block_size), str(blocks.num_blocks)): 1},
    }


def adapter_gauges(scheduler: Scheduler, now: float) -> dict[str, GaugeValues]:
    """Return the gauges of a server with adapters. `now` is Unix time."""
    state_by_adapter = {resource: standing.state for resource, standing in scheduler.adapter_statuses.items()
                        if standing.state != ABSENT_STATUS}
    state_counts = Counter(state_by_adapter.values())
    names_and_running = [(sequence.request.adapter_name, sequence.timeline.phase in RUNNING_PHASES)
                         for sequence in scheduler.sequences]
    running, waiting = (",".join(sorted({name for name, runs in names_and_running if name and runs is wanted}))
                        for wanted in (True, False))
    return {
        "weft_adapters": {(state,): state_counts[state] for state in ADAPTER_STATES},
        "weft_adapter_bytes": {(): sum(resource.max_bytes for resource in state_by_adapter)},
        "vllm:lora_requests_info": {(str(scheduler.settings.max_active_adapters), running, waiting): now},
    }
