"""Streams of the clients: passes the scheduler's events and the shards' answers to them, and what clients do (leave,
stop reading) to the scheduler."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, OutputBuilder, RequestStream
from router.errors import (
    Cancelled,
    CancelledById,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    RequestError,
    TimedOut,
    make_not_ready_error,
)
from router.request import Request, RequestKind
from router.scheduler.events import SchedulerEvent, SequenceExpired, SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestTimeline
from router.scheduler.shard_messages import StepResult
from router.telemetry.server_metrics import RequestRecord, RequestRecordStore, ServerMetrics
from router.text.tokenizer import ResumedText, Tokenizer

FAILURE_ERRORS = {RequestKind.GENERATE: GenerationFailed, RequestKind.EMBED: EmbeddingFailed,
                  RequestKind.CLASSIFY: ClassificationFailed}

# What the id of a request's other prompts and choices adds to the request's own.
CHILD_ID_PATTERN = re.compile(r"(\.[0-9]+)?(-[0-9]+)?", re.ASCII)

logger = logging.getLogger(__name__)
now = time.monotonic


class ArrivingRequests:
    """Requests whose bodies have come and that are not submitted yet, such as those that are being validated. A
    shutdown waits for them."""

    def __init__(self) -> None:
        self._num_by_id: dict[str, int] = {}  # clients choose the ids, so several requests may have the same
        self.none_left = asyncio.Event()
        self.none_left.set()

    def add(self, request_id: str) -> None:
        self._num_by_id[request_id] = self._num_by_id.get(request_id, 0) + 1
        self.none_left.clear()

    def discard(self, request_id: str) -> None:
        """Remove one request of this id, if there is one."""
        if (num_left := self._num_by_id.pop(request_id, 0) - 1) > 0:
            self._num_by_id[request_id] = num_left
        if not self._num_by_id:
            self.none_left.set()


class ClientStreams:
    """Output builders of the unfinished requests, each with its stream, by sequence id."""

    def __init__(self, config: RouterConfig, tokenizer: Tokenizer, scheduler: Scheduler,
                 wake_engine: Callable[[], None], *, metrics: ServerMetrics) -> None:
        """`wake_engine` is called when the scheduler may have something new to plan."""
        self._config = config
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._wake_engine = wake_engine
        self._metrics = metrics
        self.request_records = RequestRecordStore()
        self.arriving_requests = ArrivingRequests()
        self._builders: dict[int, OutputBuilder] = {}
        self._slow_client_timers: dict[int, asyncio.TimerHandle] = {}  # timeouts of clients that do not read
        self.all_finished = asyncio.Event()
        self.all_finished.set()

    def __len__(self) -> int:
        return len(self._builders)

    def open_stream(self, request: Request, sequence_id: int, arrived_at: float | None = None,
                    traceparent: str = "", resumed_text: ResumedText | None = None) -> RequestStream:
        stream = RequestStream(request, self._config.slow_client_buffer,
                               on_full=lambda: self._suspend_slow_client(sequence_id),
                               on_drained=lambda: self._resume_slow_client(sequence_id),
                               on_disconnect=lambda: self._on_disconnect(sequence_id))
        try:
            timeline = self._scheduler.get_request_timeline(sequence_id)
        except KeyError:  # the request can never fit, and the scheduler has dropped it
            timeline = RequestTimeline(now())
        record = RequestRecord(request.id, request.tenant.name, len(request.prompt),
                               timeline.submitted_at if arrived_at is None else arrived_at, timeline,
                               traceparent=traceparent, num_resumed=len(request.resumed_tokens),
                               adapter_name=None if request.adapter is None else request.adapter_name)
        self._builders[sequence_id] = OutputBuilder(request, stream, self._tokenizer, record, resumed_text)
        self.request_records.add_unfinished(record)
        self.all_finished.clear()
        self.arriving_requests.discard(request.id)
        self._metrics.requests.count_accepted(request)
        return stream

    def get_request(self, sequence_id: int) -> Request:
        return self._builders[sequence_id].request

    def get_traceparent(self, sequence_id: int) -> str:
        """Return the parent span of the sequence's chunks, or an empty string."""
        builder = self._builders.get(sequence_id)
        return "" if builder is None else builder.record.traceparent

    def get_text(self, sequence_id: int) -> str:
        """Return the text that an unfinished sequence has generated so far; empty if it has ended."""
        builder = self._builders.get(sequence_id)
        return "" if builder is None else builder.text

    # -- from the shards and the scheduler

    def detokenize_result(self, result: StepResult) -> dict[int, int]:
        """Detokenize rows, deliver prompt logprobs, keep pooling outputs. Returns for each sequence that reached a stop
        string how many of the row's tokens count. The rows are delivered by `dispatch_events`, once the scheduler has
        accepted them."""
        builders, stop_token_counts = self._builders, {}
        for logprobs in result.prompt_logprobs:
            if (builder := builders.get(logprobs.sequence_id)) is not None:
                builder.deliver_prompt_logprobs(logprobs)
        for sequence_id, output in result.pooling_outputs.items():
            if (builder := builders.get(sequence_id)) is not None:
                builder.pooling_output = output
        for sequence_id, row in result.rows.items():
            if (builder := builders.get(sequence_id)) is not None:
                try:
                    num_tokens = builder.detokenize_row(row)
                except Exception:  # an error in the text of one request must fail only that request
                    self._fail_undecodable(sequence_id)
                    continue
                if num_tokens is not None:
                    stop_token_counts[sequence_id] = num_tokens
        return stop_token_counts

    def _fail_undecodable(self, sequence_id: int) -> None:
        logger.exception("the text of a request could not be made")
        self._scheduler.cancel(sequence_id, now())
        self.fail_request(sequence_id, GenerationFailed("the text could not be made"))

    def dispatch_events(self, events: Iterable[SchedulerEvent]) -> None:
        """Dispatch the scheduler's events. Events of requests that are already closed are dropped."""
        for event in events:
            if isinstance(event, TokensGenerated):
                self._deliver_tokens(event.token_counts)
            elif isinstance(event, SequenceExpired):
                self.fail_request(event.sequence_id, TimedOut(event.reason))
            elif isinstance(event, SequenceFailed):
                if (builder := self._builders.get(event.sequence_id)) is not None:
                    self.fail_request(event.sequence_id, FAILURE_ERRORS[builder.request.kind](event.reason))
            elif isinstance(event, SequenceFinished):
                self._on_finished(event)

    def _on_finished(self, event: SequenceFinished) -> None:
        if (builder := self._builders.get(event.sequence_id)) is None:
            return
        try:
            builder.finish(event.reason)
        except Exception:  # fails only this request, as in `detokenize_result`
            self._fail_undecodable(event.sequence_id)
        else:
            self._close_request(event.sequence_id)
            self._metrics.requests.observe_finished(builder.record)

    def _deliver_tokens(self, token_counts: Mapping[int, int]) -> None:
        delivered_at, builders = now(), self._builders
        first_token_ids = self._metrics.requests.inter_token_latency.record_delivery(
            token_counts.keys(), builders, delivered_at)
        for sequence_id in first_token_ids:
            if (builder := builders.get(sequence_id)) is not None:
                self._metrics.requests.time_to_first_token.observe(delivered_at - builder.record.arrived_at)
        self._metrics.steps.count_generated_tokens(token_counts)
        for sequence_id in token_counts:
            if (builder := builders.get(sequence_id)) is not None:
                builder.deliver_row()

    def fail_request(self, sequence_id: int, error: RequestError) -> None:
        if (builder := self._builders.get(sequence_id)) is not None:
            self._close_request(sequence_id)
            builder.stream.put(FailedEvent(error))

    def fail_all(self, reason: str) -> None:
        for sequence_id in list(self._builders):
            self.fail_request(sequence_id, make_not_ready_error(reason))

    def cancel_all(self, reason: str) -> None:
        """Cancel all unfinished requests; their clients get the error NotReady with the reason."""
        for sequence_id in list(self._builders):
            self._scheduler.cancel(sequence_id, now())
        self.fail_all(reason)

    # -- from the clients

    def _suspend_slow_client(self, sequence_id: int) -> None:
        """Pause the sequence of a client that does not read; cancel it after --slow-client-timeout."""
        self._scheduler.suspend(sequence_id, now())
        self._slow_client_timers[sequence_id] = asyncio.get_running_loop().call_later(
            self._config.slow_client_timeout, self._cancel_slow_client, sequence_id)

    def _resume_slow_client(self, sequence_id: int) -> None:
        if (timer := self._slow_client_timers.pop(sequence_id, None)) is not None:
            timer.cancel()
        self._scheduler.resume(sequence_id, now())
        self._wake_engine()

    def _cancel_slow_client(self, sequence_id: int) -> None:
        self._scheduler.cancel(sequence_id, now())
        self.fail_request(sequence_id,
                          Cancelled(f"the client did not read for {self._config.slow_client_timeout} seconds"))

    def cancel_request(self, request_id: str, tenant_name: str) -> int:
        """Cancel the unfinished sequences of a tenant's request, those of its other choices and prompts included.
        Return how many there were."""
        sequence_ids = [sequence_id for sequence_id, builder in self._builders.items()
                        if builder.record.tenant_name == tenant_name
                        and belongs_to_request(builder.record.id, request_id)]
        for sequence_id in sequence_ids:
            self._scheduler.cancel(sequence_id, now())
            self.fail_request(sequence_id, CancelledById("DELETE /v1/requests/ID was sent for it"))
        return len(sequence_ids)

    def _on_disconnect(self, sequence_id: int) -> None:
        self._scheduler.cancel(sequence_id, now())
        self._close_request(sequence_id)

    def _close_request(self, sequence_id: int) -> None:
        if (builder := self._builders.pop(sequence_id, None)) is not None:
            self.request_records.move_to_finished(builder.record, now())
            self._metrics.requests.count_closed(sequence_id, builder.record)
        if (timer := self._slow_client_timers.pop(sequence_id, None)) is not None:
            timer.cancel()
        if not self._builders:
            self.all_finished.set()
        self._wake_engine()


def belongs_to_request(record_id: str, request_id: str) -> bool:
    """Whether an id is that of a request, or of one of its prompts (`.1`) or choices (`-2`)."""
    return record_id.startswith(request_id) and CHILD_ID_PATTERN.fullmatch(record_id, len(request_id)) is not None
