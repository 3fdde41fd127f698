"""OpenTelemetry spans of requests: one per request, sent at its end, with a child span for each phase. Attributes have
the names of the conventions for generative AI. Spans never contain text of a request."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import fsum

from router.request import FinishReason, RequestKind
from router.scheduler.sequence import RUNNING_PHASES, RequestPhase
from router.telemetry.server_metrics import RequestRecord
from router.validation.validator import ValidatedRequest
from shard.telemetry.span_export_interface import OpenSpan, SpanAttributes, SpanSender

# OpenTelemetry's names of operations
TEXT_COMPLETION_OPERATION, CHAT_OPERATION, EMBEDDINGS_OPERATION = "text_completion", "chat", "embeddings"
CLASSIFICATION_OPERATION = "token_classification"  # OpenTelemetry has no name for this operation
QUEUE_SPAN = "queue"  # every kind of waiting
MAX_TRACED_SEQUENCES = 32  # sequences of one request that get child spans; a request may have thousands
MAX_SPANS_PER_SEQUENCE = 100  # child spans of one sequence; a slow reader may cause any number of pauses
MAX_OTLP_INTEGER = 2**63 - 1  # limit of OTLP
# vLLM's names of durations, in seconds, by the name of the span
LATENCY_NAMES = {QUEUE_SPAN: "time_in_queue", RequestPhase.PREFILL: "time_in_model_prefill",
                 RequestPhase.DECODE: "time_in_model_decode"}
FINISH_REASON_NAMES = {FinishReason.END_TOKEN: "stop", FinishReason.STOP_STRING: "stop"}
now = time.monotonic

AttributeValue = str | bool | int | float | Sequence[str]
PhaseSpan = tuple[str, float, float, SpanAttributes]  # name, start, end and attributes of a child span


@dataclass(frozen=True, slots=True)
class RequestSpanFactory:
    span_sender: SpanSender
    model_name: str

    def start_request_span(self, operation: str, request_id: str, headers: Mapping[str, str],
                           arrived_at: float) -> "RequestTrace":
        # The system's clock may be adjusted, so a request reads it once and then uses the monotonic clock.
        clock_offset_ns = time.time_ns() - to_nanoseconds(now())
        attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "weft",
                      "gen_ai.request.model": self.model_name, "gen_ai.response.model": self.model_name,
                      "gen_ai.response.id": request_id}
        span = self.span_sender.start_server_span(f"{operation} {self.model_name}", headers,
                                                  clock_offset_ns + to_nanoseconds(arrived_at))
        return RequestTrace(span, clock_offset_ns, arrived_at, attributes)


@dataclass(slots=True)
class RequestTrace:
    """Request whose spans are sent at its end."""

    span: OpenSpan
    clock_offset_ns: int  # Unix time, in nanoseconds, at which the monotonic clock was 0
    arrived_at: float
    attributes: SpanAttributes
    sequences: list[tuple[ValidatedRequest, RequestRecord]] = field(default_factory=list)

    @property
    def traceparent(self) -> str:
        return self.span.traceparent

    def add_sequence(self, validated: ValidatedRequest, record: RequestRecord) -> None:
        self.sequences.append((validated, record))

    def end_request(self, outcome_attributes: SpanAttributes, *, is_server_error: bool) -> None:
        """Send the spans. `is_server_error`: the server is at fault, not the client."""
        ended_at, offset = now(), self.clock_offset_ns
        records = [record for _, record in self.sequences]
        for name, phase_started_at, phase_ended_at, attributes in request_phase_spans(self.arrived_at, records,
                                                                                      ended_at):
            self.span.add_child(name, offset + to_nanoseconds(phase_started_at),
                                offset + to_nanoseconds(phase_ended_at), attributes)
        self.span.end(offset + to_nanoseconds(ended_at), {
            **self.attributes, **outcome_attributes,
            **request_attributes([validated for validated, _ in self.sequences]),
            **response_attributes(self.arrived_at, records, ended_at)}, failed=is_server_error)


def to_nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def request_phase_spans(arrived_at: float, records: Sequence[RequestRecord], now: float) -> Iterator[PhaseSpan]:
    if records:
        yield "validation", arrived_at, min(record.timeline.submitted_at for record in records), {}
    for record in records[:MAX_TRACED_SEQUENCES]:
        yield from islice(sequence_phase_spans(record, now), MAX_SPANS_PER_SEQUENCE)


def sequence_phase_spans(record: RequestRecord, now: float) -> Iterator[PhaseSpan]:
    """Yield the phases of one sequence. Consecutive intervals of waiting are one phase."""
    for name, group in groupby(record.timeline.intervals(now), key=lambda each: phase_span_name(each[0])):
        intervals = list(group)
        attributes = {"weft.request_id": record.id}
        if name == QUEUE_SPAN:
            attributes["weft.wait_reason"] = str(max(intervals, key=lambda interval: interval[2] - interval[1])[0])
        yield name, intervals[0][1], intervals[-1][2], attributes


def phase_span_name(phase: RequestPhase) -> str:
    return str(phase) if phase in RUNNING_PHASES else QUEUE_SPAN


def request_attributes(validated_requests: Sequence[ValidatedRequest]) -> dict[str, AttributeValue]:
    """Return the attributes of the request's parameters, which are the same for all of its sequences."""
    if not validated_requests:
        return {}
    request, seed = validated_requests[0].request, validated_requests[0].seed
    if request.kind is not RequestKind.GENERATE:
        return {}
    parameters: dict[str, AttributeValue] = {"max_tokens": request.max_new_tokens,
                                             "temperature": request.sampling.temperature}
    for name in ("top_p", "top_k", "frequency_penalty", "presence_penalty"):
        if value := getattr(request.sampling, name):
            parameters[name] = value
    if seed is not None and seed <= MAX_OTLP_INTEGER:
        parameters["seed"] = seed
    if request.stop_strings:
        parameters["stop_sequences"] = request.stop_strings
    if len(validated_requests) > 1:
        parameters["choice.count"] = len(validated_requests)
    return {f"gen_ai.request.{name}": value for name, value in parameters.items()}


def response_attributes(arrived_at: float, records: Sequence[RequestRecord], now: float) -> dict[str, AttributeValue]:
    """Return the attributes of the result; tokens and times of phases are summed over the request's sequences."""
    if not records:
        return {}
    attributes: dict[str, AttributeValue] = {
        "gen_ai.usage.input_tokens": sum(record.num_prompt_tokens for record in records),
        "gen_ai.usage.output_tokens": sum(record.num_generated for record in records),
        "gen_ai.usage.cache_read.input_tokens": sum(record.timeline.num_prefix_hit_tokens for record in records)}
    if reasons := [record.finish_reason for record in records if record.finish_reason is not None]:
        attributes["gen_ai.response.finish_reasons"] = [FINISH_REASON_NAMES.get(reason, str(reason))
                                                        for reason in reasons]
    if first_token_times := [first_token_at(record, now) for record in records if record.num_generated]:
        for name in ("response.time_to_first_chunk", "latency.time_to_first_token"):
            attributes[f"gen_ai.{name}"] = min(first_token_times) - arrived_at
    intervals = [interval for record in records for interval in record.timeline.intervals(now)]
    for span_name, name in LATENCY_NAMES.items():
        attributes[f"gen_ai.latency.{name}"] = fsum(end - start for phase, start, end in intervals
                                                    if phase_span_name(phase) == span_name)
    return attributes | {"gen_ai.latency.e2e": now - arrived_at}


def first_token_at(record: RequestRecord, now: float) -> float:
    """Return the time of the first token: the first decode's start, or the end of a text with only one token."""
    intervals = record.timeline.intervals(now)
    return next((start for phase, start, _ in intervals if phase is RequestPhase.DECODE), intervals[-1][2])
