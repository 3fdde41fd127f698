"""Metrics of the engine, and records of requests. There is no work per token: counters and histograms change once per
step, and when a request begins or ends; gauges are computed from the scheduler's state when a page is made."""

import heapq
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Container, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import fsum
from typing import Any, Self

from router.config import ADAPTER_SOURCES
from router.request import FinishReason, LoadableResource, Request, Tenant
from router.scheduler.batching_policies import compute_chunk_load
from router.scheduler.cost_model import StepLoad
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.loadable_resource_cache import LOADED_STATE, UNLOADED_STATE, UNLOADING_STATE
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RUNNING_PHASES, RequestPhase, RequestTimeline
from router.scheduler.shard_messages import Concat, Decode, Filter, PoolingStep, Prefill, StepPlan, StepResult
from router.telemetry.event_loop_monitor import EventLoopMonitor
from router.telemetry.instruments import OTHER_LABEL, GaugeValues, Histogram, MetricRegistry
from router.telemetry.metric_definitions import ADAPTER_STATES, LORAX_METRIC_NAMES, PHASE_NAMES, all_metric_definitions
from router.text.prompt_encoder import TokenLimits

MAX_FINISHED_RECORDS = 1000  # records of finished requests
MAX_REFUSED_RECORDS = 100  # records of refused requests, fewer: under overload there are many of them
# names by which clients ask for an adapter on the shards, as far as everybody may see them
AdapterNames = Mapping[LoadableResource, Collection[str]]
NO_ADAPTER_NAMES: AdapterNames = {}
STALL_TOLERANCE = 2.0  # a stall counts as exceeded if it is this many times as long as allowed


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Record of one request. The scheduler keeps updating `timeline`; `arrived_at` is when the HTTP request arrived."""

    id: str
    tenant_name: str
    num_prompt_tokens: int
    arrived_at: float
    timeline: RequestTimeline
    num_generated: int = 0  # tokens delivered to the client's stream
    finish_reason: FinishReason | None = None  # of a generated text; None if unfinished, failed or cancelled
    adapter_name: str | None = None  # name of its adapter in metrics, empty for a private one; None without an adapter
    traceparent: str = ""  # parent of the spans that shards send for it; empty: shards send none
    error_type: str | None = None  # why it failed or was refused, as in metrics; None while unfinished
    # Its HTTP side, for explanations: route, status, headers. None while unfinished, and for all but the first of
    # several prompts or choices.
    http_exchange: Mapping[str, Any] | None = None
    num_resumed: int = 0  # tokens of another stream behind which the output goes on

    @classmethod
    def of_refused(cls, request_id: str, tenant_name: str, arrived_at: float, now: float, error_type: str) -> Self:
        """Return the record of a request that ends now without having been submitted."""
        record = cls(request_id, tenant_name, 0, arrived_at, RequestTimeline(now), error_type=error_type)
        record.timeline.end(now)
        return record

    @property
    def state(self) -> str:
        if self.timeline.ended_at is not None:
            return "over"
        return "running" if self.timeline.phase in RUNNING_PHASES else "waiting"

    def log_fields(self, now: float) -> dict[str, Any]:
        """Return the fields of the log line of a finished request. What does not apply is left out."""
        timeline = self.timeline
        seconds_by_phase = timeline.seconds_by_phase(now)
        queue_seconds = sum(seconds for phase, seconds in seconds_by_phase.items() if phase not in RUNNING_PHASES)
        fields: dict[str, Any] = {
            "prompt_tokens": self.num_prompt_tokens, "cached_tokens": timeline.num_prefix_hit_tokens,
            "generated_tokens": self.num_generated, "queue_ms": round(queue_seconds * 1000, 1)}
        if self.num_resumed:
            fields["resumed_tokens"] = self.num_resumed
        starts = [start for phase, start, _ in timeline.intervals(now) if phase is RequestPhase.DECODE]
        if starts:
            fields["first_token_ms"] = round((starts[0] - self.arrived_at) * 1000, 1)
        decode_seconds = seconds_by_phase.get(RequestPhase.DECODE, 0.0)
        if self.num_generated > 1 and decode_seconds > 0:
            fields["tokens_per_second"] = round((self.num_generated - 1) / decode_seconds, 1)
        fields["total_ms"] = round((now - self.arrived_at) * 1000, 1)
        if self.finish_reason is not None:
            fields["finish_reason"] = str(self.finish_reason)
        if self.adapter_name:
            fields["adapter"] = self.adapter_name
        if self.tenant_name:
            fields["tenant"] = self.tenant_name
        return fields


def sum_choices_for_log(prompts: Sequence[Sequence[RequestRecord]]) -> dict[str, int]:
    """Return the fields of the log line of a request with several prompts or choices that differ from those of its
    first choice. A prompt counts once."""
    if len(prompts) == len(prompts[0]) == 1:
        return {}
    return {"prompts": len(prompts), "choices": max(map(len, prompts)),
            "prompt_tokens": sum(first.num_prompt_tokens for first, *_ in prompts),
            "cached_tokens": sum(first.timeline.num_prefix_hit_tokens for first, *_ in prompts),
            "generated_tokens": sum(choice.num_generated for choices in prompts for choice in choices)}


class RequestRecordStore:
    """Records by request id. Clients choose ids, so two requests of a tenant may have the same one: the later one is
    kept. A record of another tenant is never replaced; the later request then has none."""

    def __init__(self, max_finished: int = MAX_FINISHED_RECORDS) -> None:
        self._max_finished = max_finished
        self._unfinished: dict[str, RequestRecord] = {}
        self._finished: OrderedDict[str, RequestRecord] = OrderedDict()
        self._refused: deque[RequestRecord] = deque(maxlen=MAX_REFUSED_RECORDS)

    def add_unfinished(self, record: RequestRecord) -> None:
        earlier = self._get_submitted(record.id)
        if earlier is not None and earlier.tenant_name != record.tenant_name:
            return
        self._finished.pop(record.id, None)
        self._unfinished[record.id] = record

    def move_to_finished(self, record: RequestRecord, now: float) -> None:
        """Move a record to the finished ones, and end its timeline unless the scheduler has done so."""
        record.timeline.end(now)
        if self._unfinished.get(record.id) is not record:
            return
        self._finished[record.id] = self._unfinished.pop(record.id)
        if len(self._finished) > self._max_finished:
            self._finished.popitem(last=False)

    def add_refused(self, record: RequestRecord) -> None:
        """Add the record of a request that was never submitted. It is listed, and keeps no other request from its
        id."""
        self._refused.append(record)

    def get(self, request_id: str) -> RequestRecord | None:
        return self._get_submitted(request_id) or next(
            (record for record in reversed(self._refused) if record.id == request_id), None)

    def _get_submitted(self, request_id: str) -> RequestRecord | None:
        return self._unfinished.get(request_id) or self._finished.get(request_id)

    def find_records_by_prompt(self, first: RequestRecord) -> list[list[RequestRecord]]:
        """Return the records of all prompts of the request that has this first one, for each those of its choices."""
        return [list(self._iterate_parts(prompt, "-", 2)) for prompt in self._iterate_parts(first, ".", 1)]

    def _iterate_parts(self, first: RequestRecord, separator: str, number: int) -> Iterator[RequestRecord]:
        yield first
        while ((part := self._get_submitted(f"{first.id}{separator}{number}")) is not None
               and part.arrived_at == first.arrived_at):
            yield part
            number += 1

    def find_latest(self, tenant_name: str, max_records: int) -> list[RequestRecord]:
        """Return a tenant's records: those of unfinished requests, the latest first, then those that ended last."""
        ended = heapq.merge(reversed(self._finished.values()), reversed(self._refused),
                            key=lambda record: -(record.timeline.ended_at or 0.0))
        newest_first = chain(reversed(self._unfinished.values()), ended)
        return list(islice((record for record in newest_first if record.tenant_name == tenant_name), max_records))

    def copy_records_except(self, record: RequestRecord) -> list[RequestRecord]:
        """Return copies of all other records, with timelines of their own, which another thread may read."""
        return [replace(other, timeline=other.timeline.copy())
                for other in (*self._unfinished.values(), *self._finished.values()) if other is not record]

    def can_use_request_id(self, request_id: str, tenant: Tenant) -> bool:
        """Return whether a new request of `tenant` may have this id: it is unknown, or of its finished requests."""
        record = self._get_submitted(request_id)
        return record is None or (request_id not in self._unfinished and record.tenant_name == tenant.name)


class InterTokenLatency:
    """Time between deliveries of tokens to a sequence, with one observation for all members of an unchanged step."""

    def __init__(self, histogram: Histogram) -> None:
        self.histogram = histogram
        self._last_sequence_ids: KeysView[int] = dict[int, int]().keys()  # sequences of the last delivery
        self._last_delivery_at = 0.0
        self._earlier_delivery_times: dict[int, float] = {}  # of other sequences that have tokens

    def record_delivery(self, sequence_ids: KeysView[int], unfinished_ids: Container[int],
                        now: float) -> Sequence[int]:
        """Observe a delivery of tokens to these sequences; return the sequences that got their first tokens."""
        if sequence_ids == self._last_sequence_ids:
            self.histogram.observe(now - self._last_delivery_at, len(sequence_ids))
            self._last_delivery_at = now
            return ()
        repeated_ids = sequence_ids & self._last_sequence_ids
        self.histogram.observe(now - self._last_delivery_at, len(repeated_ids))
        first_token_ids = []
        for sequence_id in sequence_ids - repeated_ids:
            last_delivery_at = self._earlier_delivery_times.pop(sequence_id, None)
            if last_delivery_at is None:
                first_token_ids.append(sequence_id)
            else:
                self.histogram.observe(now - last_delivery_at)
        for sequence_id in self._last_sequence_ids - repeated_ids:
            if sequence_id in unfinished_ids:
                self._earlier_delivery_times[sequence_id] = self._last_delivery_at
        self._last_sequence_ids, self._last_delivery_at = sequence_ids, now
        return first_token_ids

    def remove_sequence(self, sequence_id: int) -> None:
        self._earlier_delivery_times.pop(sequence_id, None)


class ServerMetrics:
    """All metrics of a router, and their page."""

    def __init__(self, scheduler: Scheduler, limits: TokenLimits, tokens_per_step: int, *,
                 with_adapters: bool = False, with_lorax_names: bool = False) -> None:
        """`limits` and `tokens_per_step` determine buckets. `with_adapters`: whether adapters are served;
        `with_lorax_names`: whether the page repeats metrics under LoRAX's names."""
        self._scheduler = scheduler
        self._registry = MetricRegistry(all_metric_definitions(limits, tokens_per_step, with_adapters=with_adapters))
        self._aliases = LORAX_METRIC_NAMES if with_lorax_names else {}
        self.started_at = time.time()  # Unix time
        self.adapters = AdapterMetrics(self._registry) if with_adapters else None
        self.requests = RequestMetrics(self._registry, self.adapters)
        self.steps = StepMetrics(self._registry, scheduler, single_token_steps=tokens_per_step == 1)
        self.event_loop_monitor = EventLoopMonitor(*(self._registry.get_histogram("weft_event_loop_delay_seconds", part)
                                                     for part in ("all", "computing")))

    def render(self, *, is_ready: bool, has_shards: bool, adapter_names: AdapterNames = NO_ADAPTER_NAMES) -> str:
        gauges = scheduler_gauges(self._scheduler) | {"tgi_ready": {(): is_ready}, "tgi_shard_ready": {(): has_shards}}
        gauges |= ({"vllm:lora_requests_info": {("0", "", ""): self.started_at}} if self.adapters is None
                   else adapter_gauges(self._scheduler, time.time(), adapter_names))
        return self._registry.render(gauges, self._aliases)


class AdapterMetrics:
    """Metrics of adapters: fetches, loads, unloads, requests and generated tokens."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._registry = registry
        self.num_unloads = registry.get_counter("weft_adapter_unloads")
        self._num_loads = registry.get_counters_by_label("weft_adapter_loads")
        self._load_seconds = registry.get_histogram("weft_adapter_load_seconds")
        self._fetch_seconds = registry.get_histogram("weft_adapter_fetch_seconds")

    def observe_load(self, seconds: float, failure_reason: str) -> None:
        """Count a load. A non-empty `failure_reason` means that the load failed."""
        self._num_loads["failed" if failure_reason else "ok"].add()
        if not failure_reason:
            self._load_seconds.observe(seconds)

    def observe_fetch(self, source: str, outcome: str, seconds: float) -> None:
        self._registry.get_counter("weft_adapter_fetches", source if source in ADAPTER_SOURCES else OTHER_LABEL,
                                   outcome).add()
        if outcome == "ok":
            self._fetch_seconds.observe(seconds)

    def count_request(self, adapter_name: str) -> None:
        """Count an accepted request. The name of a private adapter is empty and counted as OTHER_LABEL."""
        self._registry.get_or_create_counter("weft_adapter_requests", adapter_name or OTHER_LABEL).add()

    def count_generated_tokens(self, adapter_name: str, num_tokens: int) -> None:
        self._registry.get_or_create_counter("weft_adapter_generated_tokens",
                                             adapter_name or OTHER_LABEL).add(num_tokens)


class RequestMetrics:
    """Metrics of requests: counts, lengths, durations by phase, and token latencies."""

    def __init__(self, registry: MetricRegistry, adapters: AdapterMetrics | None = None) -> None:
        self._adapters = adapters
        histogram, counter = registry.get_histogram, registry.get_counter
        # Updated by the HTTP layer.
        self.num_received, self.num_succeeded = counter("tgi_request_count"), counter("tgi_request_success")
        self.num_failed = registry.get_counters_by_label("tgi_request_failure")
        self._prompt_length = histogram("tgi_request_input_length")
        self._max_new_tokens = histogram("tgi_request_max_new_tokens")
        self._generated_tokens = histogram("tgi_request_generated_tokens")
        self._phase_seconds = {name: histogram(f"tgi_request_{name}_duration") for name in (
            "validation", "queue", "inference", "mean_time_per_token")}
        self.time_to_first_token = histogram("tgi_request_time_to_first_token_duration")
        self.total_seconds = histogram("tgi_request_duration")
        self.inter_token_latency = InterTokenLatency(histogram("tgi_request_inter_token_duration"))
        self._num_preemptions = counter("tgi_request_yields")
        self.prefix_query_tokens = counter("tgi_prefix_query_tokens")
        self.prefix_hit_tokens = counter("tgi_prefix_hit_tokens")

    def count_accepted(self, request: Request) -> None:
        self._prompt_length.observe(len(request.prompt))
        self._max_new_tokens.observe(request.max_new_tokens)
        if self._adapters is not None and request.adapter is not None:
            self._adapters.count_request(request.adapter_name)

    def observe_finished(self, record: RequestRecord) -> None:
        """Observe a closed request that was answered to its end."""
        timeline = record.timeline
        assert timeline.ended_at is not None, "it goes on"
        phase_seconds = timeline.seconds_by_phase(timeline.ended_at)
        inference_seconds = phase_seconds.get(RequestPhase.PREFILL, 0.0) + phase_seconds.get(RequestPhase.DECODE, 0.0)
        self.total_seconds.observe(timeline.ended_at - record.arrived_at)
        self._phase_seconds["validation"].observe(timeline.submitted_at - record.arrived_at)
        self._phase_seconds["queue"].observe(
            fsum(seconds for phase, seconds in phase_seconds.items() if phase not in RUNNING_PHASES))
        self._phase_seconds["inference"].observe(inference_seconds)
        self._phase_seconds["mean_time_per_token"].observe(inference_seconds / max(record.num_generated, 1))
        self._generated_tokens.observe(record.num_generated)

    def count_closed(self, sequence_id: int, record: RequestRecord) -> None:
        """Count a request that ended, for whatever reason."""
        self.inter_token_latency.remove_sequence(sequence_id)
        self._num_preemptions.add(record.timeline.num_preemptions)
        if self._adapters is not None and record.adapter_name is not None:
            self._adapters.count_generated_tokens(record.adapter_name, record.num_generated)
        if record.timeline.has_started:
            self.prefix_query_tokens.add(record.num_prompt_tokens)
            self.prefix_hit_tokens.add(record.timeline.num_prefix_hit_tokens)


class StepTypeMetrics:
    """Metrics of one kind of step: prefill, decode, or embed."""

    def __init__(self, registry: MetricRegistry, method: str) -> None:
        self.num_sent = registry.get_counter("tgi_batch_inference_count", method)
        self.num_answered = registry.get_counter("tgi_batch_inference_success", method)
        self.num_lost = registry.get_counter("tgi_batch_inference_failure", method)
        self.duration_seconds = registry.get_histogram("tgi_batch_inference_duration", method)
        self.forward_seconds = registry.get_histogram("tgi_batch_forward_duration", method)
        self.detokenize_seconds = registry.get_histogram("tgi_batch_decode_duration", method)


class StepMetrics:
    """Metrics of steps: how many were sent, answered and lost, their durations, and stalls of decodes."""

    def __init__(self, registry: MetricRegistry, scheduler: Scheduler, *, single_token_steps: bool) -> None:
        self._scheduler = scheduler
        self._single_token_steps = single_token_steps  # a step generates at most one token per sequence
        self._metrics_by_step_type: dict[type, StepTypeMetrics] = {
            Prefill: StepTypeMetrics(registry, "prefill"), Decode: StepTypeMetrics(registry, "decode"),
            PoolingStep: StepTypeMetrics(registry, "embed")}
        self._standalone_durations: dict[type, Histogram] = {
            Filter: registry.get_histogram("tgi_batch_filter_duration", "decode"),
            Concat: registry.get_histogram("tgi_batch_concat_duration", "decode")}
        self._num_newcomers = registry.get_histogram("tgi_batch_next_size")
        self._join_reasons = registry.get_counters_by_label("tgi_batch_concat")
        self._stall_seconds = registry.get_histogram("tgi_batch_stall_duration")
        self._num_stalls_exceeded = registry.get_counter("tgi_batch_stall_exceeded")
        self._skipped_tokens = registry.get_histogram("tgi_request_skipped_tokens")
        self.prompt_tokens = registry.get_counter("tgi_batch_prompt_tokens")
        self.generated_tokens = registry.get_counter("tgi_batch_generated_tokens")
        self._shard_losses = registry.get_counters_by_label("tgi_shard_lost")
        self._num_decodes_since_prefill = 0  # decode steps since sequences last started

    @property
    def num_answered(self) -> int:
        """Number of steps answered since the start."""
        return sum(method.num_answered.value for method in self._metrics_by_step_type.values())

    @property
    def total_seconds(self) -> float:
        """Seconds that they took, from their message to their tokens."""
        return fsum(method.duration_seconds.sum for method in self._metrics_by_step_type.values())

    def count_sent(self, plan: StepPlan) -> None:
        step = plan.messages[-1]
        if (method := self._metrics_by_step_type.get(type(step))) is not None:
            method.num_sent.value += 1
        if isinstance(step, Prefill):
            self.prompt_tokens.add(sum(chunk.length for chunk in step.chunks))
            if step.new_sequences:
                self._num_newcomers.observe(len(step.new_sequences))
                if len(self._scheduler.running) > len(step.new_sequences):
                    has_waited = self._num_decodes_since_prefill >= self._scheduler.settings.max_waiting_tokens
                    self._join_reasons["chunking" if not self._scheduler.policy.pauses_decodes
                                       else "wait_exceeded" if has_waited else "backpressure"].add()
                self._num_decodes_since_prefill = 0
        elif isinstance(step, PoolingStep):
            self.prompt_tokens.add(sum(len(new_sequence.request.prompt) for new_sequence in step.new_sequences))
        elif isinstance(step, Decode):
            self._num_decodes_since_prefill += 1

    def observe_result(self, plan: StepPlan, result: StepResult, round_trip_seconds: float,
                       detokenize_seconds: float) -> None:
        """Count an answered plan: the seconds of its round trip, and those of detokenizing its answer."""
        step = plan.messages[-1]
        if (standalone_duration := self._standalone_durations.get(type(step))) is not None:
            standalone_duration.observe(round_trip_seconds)
            return
        method = self._metrics_by_step_type[type(step)]
        method.num_answered.value += 1
        method.duration_seconds.observe(round_trip_seconds + detokenize_seconds)
        method.forward_seconds.observe(result.seconds)
        method.detokenize_seconds.observe(detokenize_seconds)
        if self._single_token_steps:
            self._skipped_tokens.observe(0.0, len(result.rows))
        else:
            for count, times in Counter(len(row.tokens) for row in result.rows.values()).items():
                self._skipped_tokens.observe(count - 1, times)
        if isinstance(step, Prefill):
            self._observe_stall(plan, step, result.seconds)

    def count_generated_tokens(self, token_counts: Mapping[int, int]) -> None:
        self.generated_tokens.value += len(token_counts) if self._single_token_steps else sum(token_counts.values())

    def count_shard_loss(self, loss_reason: ShardLossReason, plans: Iterable[StepPlan]) -> None:
        """Count a loss of the shards, and the steps that were in flight."""
        self._shard_losses[loss_reason.name.lower()].add()
        for plan in plans:
            if (method := self._metrics_by_step_type.get(type(plan.messages[-1]))) is not None:
                method.num_lost.add()

    def _observe_stall(self, plan: StepPlan, step: Prefill, seconds: float) -> None:
        """Observe by how much prompts delayed the sequences that decode: in a mixed step its duration beyond the
        prediction for the decodes alone; if decodes pause, the whole step."""
        if step.includes_decodes:
            costs, empty = self._scheduler.cost_model, StepLoad()
            prompt_seconds = fsum(costs.predict(compute_chunk_load(chunk.start, chunk.length)) - costs.predict(empty)
                                  for chunk in step.chunks)
            stall_seconds = seconds - (plan.predicted_seconds - prompt_seconds)
            self._stall_seconds.observe(max(0.0, stall_seconds))
            # Allowed is the configured stall, or what was planned if that is more: see PrefillTimeLedger.
            if stall_seconds > STALL_TOLERANCE * max(self._scheduler.settings.max_stall_seconds, prompt_seconds):
                self._num_stalls_exceeded.add()
        elif self._scheduler.policy.pauses_decodes and len(self._scheduler.running) > len(plan.member_ids):
            self._stall_seconds.observe(seconds)


def scheduler_gauges(scheduler: Scheduler) -> dict[str, GaugeValues]:
    blocks, num_waiting = scheduler.running.block_pool, len(scheduler.waiting)
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


def adapter_gauges(scheduler: Scheduler, now: float,
                   adapter_names: AdapterNames = NO_ADAPTER_NAMES) -> dict[str, GaugeValues]:
    """Return the gauges of a server with adapters. `now` is Unix time."""
    state_by_adapter = {resource: standing.state
                        for resource, standing in scheduler.resource_cache.adapter_states.items()
                        if standing.state != UNLOADED_STATE}
    state_counts = Counter(state_by_adapter.values())
    running, waiting = find_adapters_in_use(scheduler, state_by_adapter, adapter_names)
    return {
        "weft_adapters": {(state,): state_counts[state] for state in ADAPTER_STATES},
        "weft_adapter_bytes": {(): sum(resource.max_bytes for resource in state_by_adapter)},
        "vllm:lora_requests_info": {(str(scheduler.settings.max_active_adapters), ",".join(sorted(running)),
                                     ",".join(sorted(waiting - running))): now},
    }


def find_adapters_in_use(scheduler: Scheduler, state_by_adapter: Mapping[LoadableResource, str],
                         adapter_names: AdapterNames) -> tuple[set[str], set[str]]:
    """Return the names of adapters that are on the shards, and of those for which requests wait. The gateway compares
    them with `model`, and splits the list at commas, so a name with a comma is left out."""
    names_by_standing: tuple[set[str], set[str]] = set(), set()
    for sequence in scheduler.sequences:
        if sequence.request.adapter is not None:
            names_by_standing[sequence.timeline.phase not in RUNNING_PHASES].update(
                {sequence.request.adapter_name} - {""}, adapter_names.get(sequence.request.adapter, ()))
    for adapter, state in state_by_adapter.items():
        if state != UNLOADING_STATE:
            names_by_standing[state != LOADED_STATE].update(adapter_names.get(adapter, ()))
    running, waiting = ({name for name in names if "," not in name} for names in names_by_standing)
    return running, waiting
