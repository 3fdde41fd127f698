"""Tests of router/engine/client_streams.py."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metrics_page import parse_metrics
from support.servers.expected_streams import make_text_request

from router.config import RouterConfig
from router.engine import client_streams
from router.engine.client_streams import ArrivingRequests, ClientStreams
from router.engine.output_stream import (
    FinishedEvent,
    OutputBuilder,
    PoolingEvent,
    PromptLogprobsEvent,
    RequestStream,
    TokenEvent,
)
from router.errors import Cancelled, ClassificationFailed, EmbeddingFailed, GenerationFailed, NotReady, TimedOut
from router.model_info import ModelInfo
from router.request import FinishReason, LoadableResource, Request, RequestKind
from router.scheduler.events import (
    RequestAccepted,
    SchedulerEvent,
    SequenceExpired,
    SequenceFailed,
    SequenceFinished,
    TokensGenerated,
)
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import PromptLogprobs, StepResult, StepResultRow
from router.telemetry.server_metrics import RequestRecord, ServerMetrics
from router.text.prompt_encoder import TokenLimits
from router.text.tokenizer import create_byte_tokenizer

MODEL_INFO = ModelInfo("loom", "cpu", "float32", vocabulary_size=512, max_positions=2048, block_size=16, num_blocks=100)
TOKENIZER = create_byte_tokenizer()
SUBMITTED_AT = 2.0
SMALLEST_BUFFER = 4096  # bytes
TOKENS_BEYOND_BUFFER = b"x" * 40  # as events they take more bytes than the smallest buffer has


class StreamsSetup:
    """Client streams over a scheduler without shards: tests pass in the shards' results and the scheduler's events."""

    def __init__(self, **settings: Any) -> None:
        self.scheduler = Scheduler(SchedulerSettings(), MODEL_INFO)
        self.metrics = ServerMetrics(self.scheduler, TokenLimits(1599, 1600), 1)
        self.num_wakes = 0
        self.client_streams = ClientStreams(RouterConfig(**settings), TOKENIZER, self.scheduler, self._count_wake,
                                            metrics=self.metrics)
        self.streams: dict[int, RequestStream] = {}

    def _count_wake(self) -> None:
        self.num_wakes += 1

    def open(self, arrived_at: float | None = None, traceparent: str = "", **request_fields: Any) -> int:
        """Submit a request, open its stream and return its sequence id."""
        request = make_text_request(**{"max_new_tokens": 100, **request_fields})
        sequence_id = self.scheduler.submit(request, SUBMITTED_AT)[0].sequence_id  # type: ignore[union-attr]
        self.streams[sequence_id] = self.client_streams.open_stream(request, sequence_id, arrived_at, traceparent)
        return sequence_id

    def detokenize(self, tokens_by_sequence: dict[int, bytes]) -> dict[int, int]:
        rows = {sequence_id: StepResultRow(list(tokens), [-0.5] * len(tokens))
                for sequence_id, tokens in tokens_by_sequence.items()}
        return self.client_streams.detokenize_result(StepResult(1, 0.0, rows, {}))

    def dispatch(self, *events: SchedulerEvent) -> None:
        self.client_streams.dispatch_events(events)

    def generate(self, sequence_id: int, tokens: bytes) -> None:
        """Pass on a step in which the sequence gets these tokens."""
        self.detokenize({sequence_id: tokens})
        self.dispatch(TokensGenerated({sequence_id: len(tokens)}))

    def take_text(self, sequence_id: int) -> str:
        return "".join(event.text for event in self.streams[sequence_id].take_events()
                       if isinstance(event, TokenEvent))

    def get_record(self, sequence_id: int) -> RequestRecord:
        record = self.client_streams.request_records.get(self.streams[sequence_id].request.id)
        assert record is not None
        return record

    def get_sample(self, name: str) -> float:
        return parse_metrics(self.metrics.render(is_ready=True, has_shards=True))[name]


def run_scenario(scenario: Callable[[StreamsSetup], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(StreamsSetup(**settings)), 5.0)
    asyncio.run(main())


async def wait_for_timers() -> None:
    """Wait until every timer that is due has fired."""
    fired = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0, fired.set)
    await fired.wait()


# -- from the shards


def test_tokens_go_to_the_stream_of_their_sequence() -> None:
    setup = StreamsSetup()
    first, second = setup.open(), setup.open()
    setup.detokenize({first: b"ab", second: b"c"})
    setup.dispatch(TokensGenerated({first: 2, second: 1}))
    assert (setup.take_text(first), setup.take_text(second)) == ("ab", "c")


def test_tokens_are_delivered_only_when_the_scheduler_has_accepted_them() -> None:
    setup = StreamsSetup()
    first, second = setup.open(), setup.open()
    setup.detokenize({first: b"ab", second: b"c"})
    assert setup.take_text(first) == ""
    setup.dispatch(TokensGenerated({second: 1}))
    assert (setup.take_text(first), setup.take_text(second)) == ("", "c")


def test_token_counts_of_sequences_that_reached_a_stop_string_are_returned() -> None:
    setup = StreamsSetup()
    first, second, third = (setup.open(stop_strings=stop_strings) for stop_strings in ((".",), (".",), ()))
    assert setup.detokenize({first: b"a.b", second: b"abc", third: b"..."}) == {first: 2}


def test_undecodable_row_leaves_the_rest_of_its_step_intact(monkeypatch: pytest.MonkeyPatch,
                                                            caplog: pytest.LogCaptureFixture) -> None:
    detokenize_row = OutputBuilder.detokenize_row

    def fail_on_letter_z(builder: OutputBuilder, row: StepResultRow) -> int | None:
        return 1 // 0 if ord("z") in row.tokens else detokenize_row(builder, row)

    monkeypatch.setattr(OutputBuilder, "detokenize_row", fail_on_letter_z)
    setup = StreamsSetup()
    guilty, other = setup.open(), setup.open(stop_strings=(".",))
    assert setup.detokenize({guilty: b"z", other: b"."}) == {other: 1}
    assert isinstance(setup.streams[guilty].failure, GenerationFailed)
    assert (setup.scheduler.sequences.get(guilty), len(setup.client_streams)) == (None, 1)
    assert caplog.messages == ["the text of a request could not be made"]


def test_prompt_logprobs_go_to_the_stream_of_their_sequence() -> None:
    setup = StreamsSetup()
    first, second = setup.open(), setup.open()
    setup.client_streams.detokenize_result(StepResult(1, 0.0, {}, {}, [PromptLogprobs(second, 1, [-1.0, -2.0])]))
    assert setup.streams[first].take_events() == []
    assert setup.streams[second].take_events() == [PromptLogprobsEvent(1, (-1.0, -2.0))]


def test_pooling_output_is_delivered_when_its_sequence_finishes() -> None:
    setup = StreamsSetup()
    sequence_id = setup.open(kind=RequestKind.EMBED, max_new_tokens=0)
    setup.client_streams.detokenize_result(StepResult(1, 0.0, {}, {}, pooling_outputs={sequence_id: [0.5, 1.5]}))
    assert setup.streams[sequence_id].take_events() == []
    setup.dispatch(SequenceFinished(sequence_id, FinishReason.LENGTH))
    timeline = setup.get_record(sequence_id).timeline
    assert setup.streams[sequence_id].take_events() == [PoolingEvent([0.5, 1.5], timeline)]


def test_answer_for_requests_that_have_ended_is_dropped_silently(caplog: pytest.LogCaptureFixture) -> None:
    setup = StreamsSetup()
    sequence_id = setup.open()
    setup.streams[sequence_id].close()
    assert setup.client_streams.detokenize_result(StepResult(
        1, 0.0, {sequence_id: StepResultRow([97], [-0.5])}, {}, [PromptLogprobs(sequence_id, 1, [-1.0])],
        {sequence_id: [0.5]})) == {}
    assert not caplog.records


# -- from the scheduler


EVENTS: dict[str, Callable[[int], SchedulerEvent]] = {
    "tokens": lambda sequence_id: TokensGenerated({sequence_id: 1}),
    "finish": lambda sequence_id: SequenceFinished(sequence_id, FinishReason.LENGTH),
    "failure": lambda sequence_id: SequenceFailed(sequence_id, "it broke"),
    "timeout": lambda sequence_id: SequenceExpired(sequence_id, "too late"),
}


@pytest.mark.parametrize("event", EVENTS)
def test_event_of_a_request_that_has_ended_is_dropped_silently(event: str, caplog: pytest.LogCaptureFixture) -> None:
    setup = StreamsSetup()
    sequence_id = setup.open()
    setup.streams[sequence_id].close()
    setup.dispatch(EVENTS[event](sequence_id))
    assert (setup.streams[sequence_id].take_events(), setup.num_wakes, caplog.records) == ([], 1, [])


def test_other_events_change_nothing() -> None:
    setup = StreamsSetup()
    setup.dispatch(RequestAccepted(setup.open()))
    assert (len(setup.client_streams), setup.num_wakes) == (1, 0)


def test_text_that_cannot_be_finished_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputBuilder, "finish", lambda *_: 1 // 0)
    setup = StreamsSetup()
    sequence_id = setup.open()
    setup.dispatch(SequenceFinished(sequence_id, FinishReason.LENGTH))
    assert isinstance(setup.streams[sequence_id].failure, GenerationFailed)
    assert (len(setup.client_streams), setup.get_sample("tgi_request_duration_count")) == (0, 0)


@pytest.mark.parametrize(("kind", "error_type"), [
    (RequestKind.GENERATE, GenerationFailed), (RequestKind.EMBED, EmbeddingFailed),
    (RequestKind.CLASSIFY, ClassificationFailed)])
def test_error_of_a_failed_sequence_says_what_was_asked_for(kind: RequestKind, error_type: type[Exception]) -> None:
    setup = StreamsSetup()
    sequence_id = setup.open(kind=kind, max_new_tokens=0)
    setup.dispatch(SequenceFailed(sequence_id, "it broke"))
    failure = setup.streams[sequence_id].failure
    assert (type(failure), str(failure)) == (error_type, "it broke")


def test_expired_sequence_times_out_with_its_reason() -> None:
    setup = StreamsSetup()
    sequence_id = setup.open()
    setup.dispatch(SequenceExpired(sequence_id, "it waited for 3 seconds"))
    failure = setup.streams[sequence_id].failure
    assert (type(failure), str(failure)) == (TimedOut, "it waited for 3 seconds")


def test_last_tokens_and_the_end_come_together() -> None:
    setup = StreamsSetup()
    sequence_id = setup.open()
    setup.detokenize({sequence_id: b"ab"})
    setup.dispatch(TokensGenerated({sequence_id: 2}), SequenceFinished(sequence_id, FinishReason.STOP_STRING))
    *tokens, end = setup.streams[sequence_id].take_events()
    assert [token.id for token in tokens] == [97, 98]  # type: ignore[union-attr]
    assert end == FinishedEvent(FinishReason.STOP_STRING, "ab", 2, setup.get_record(sequence_id).timeline)
    assert setup.get_record(sequence_id).finish_reason is FinishReason.STOP_STRING


def test_request_that_the_scheduler_has_dropped_gets_a_timeline_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_streams, "now", lambda: 7.0)
    setup = StreamsSetup()
    sequence_id = setup.open(max_new_tokens=10_000)
    assert setup.scheduler.sequences.get(sequence_id) is None
    assert setup.get_record(sequence_id).arrived_at == 7.0
    setup.dispatch(SequenceFailed(sequence_id, "it never fits"))
    assert isinstance(setup.streams[sequence_id].failure, GenerationFailed)


# -- ends

ENDS: dict[str, Callable[[StreamsSetup, int], None]] = {
    "finish": lambda setup, sequence_id: setup.dispatch(EVENTS["finish"](sequence_id)),
    "failure": lambda setup, sequence_id: setup.dispatch(EVENTS["failure"](sequence_id)),
    "timeout": lambda setup, sequence_id: setup.dispatch(EVENTS["timeout"](sequence_id)),
    "disconnect": lambda setup, sequence_id: setup.streams[sequence_id].close(),
    "shutdown": lambda setup, _: setup.client_streams.fail_all("the server stops"),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_closes_the_request(end: str) -> None:
    setup = StreamsSetup()
    sequence_id = setup.open(traceparent="00-mine")
    assert setup.client_streams.get_traceparent(sequence_id) == "00-mine"
    assert (len(setup.client_streams), setup.get_record(sequence_id).state) == (1, "waiting")
    ENDS[end](setup, sequence_id)
    assert (len(setup.client_streams), setup.get_record(sequence_id).state) == (0, "over")
    assert (setup.client_streams.get_traceparent(sequence_id), setup.num_wakes) == ("", 1)


@pytest.mark.parametrize("end", ENDS)
def test_only_finished_requests_count_as_answered(end: str) -> None:
    setup = StreamsSetup()
    sequence_id = setup.open()
    setup.generate(sequence_id, b"a")
    ENDS[end](setup, sequence_id)
    assert setup.get_sample("tgi_request_duration_count") == (end == "finish")


@pytest.mark.parametrize("end", ENDS)
def test_waiting_for_empty_streams_lasts_until_the_last_request_has_ended(end: str) -> None:
    async def scenario(setup: StreamsSetup) -> None:
        await setup.client_streams.all_finished.wait()
        first, last = setup.open(), setup.open()
        waiting = asyncio.create_task(setup.client_streams.all_finished.wait())
        setup.dispatch(SequenceFinished(first, FinishReason.LENGTH))
        await wait_for_timers()
        assert not waiting.done()
        ENDS[end](setup, last)
        await waiting
    run_scenario(scenario)


def test_shutdown_fails_every_request_with_its_reason() -> None:
    setup = StreamsSetup()
    setup.open()
    setup.open()
    setup.client_streams.fail_all("the server stops")
    failures = [stream.failure for stream in setup.streams.values()]
    assert [(type(failure), str(failure)) for failure in failures] == [(NotReady, "the server stops")] * 2


def test_disconnect_ends_the_sequence_and_no_other() -> None:
    setup = StreamsSetup()
    leaving, staying = setup.open(), setup.open()
    setup.streams[leaving].close()
    assert setup.scheduler.sequences.get(leaving) is None
    assert setup.scheduler.sequences.get(staying) is not None


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["token", *ENDS])), max_size=20))
def test_stream_ends_at_most_once_and_gets_nothing_afterwards(operations: list[tuple[int, str]]) -> None:
    """Each operation happens to one of four requests, which may have ended already."""
    setup, received, expected = StreamsSetup(), [list[str]() for _ in range(4)], [list[str]() for _ in range(4)]
    sequence_ids, unfinished = [setup.open() for _ in range(4)], {0, 1, 2, 3}
    for index, operation in operations:
        if operation == "token":
            setup.generate(sequence_ids[index], b"a")
        else:
            ENDS[operation](setup, sequence_ids[index])
        for affected in unfinished & ({0, 1, 2, 3} if operation == "shutdown" else {index}):
            expected[affected] += [] if operation == "disconnect" else ["token" if operation == "token" else "end"]
            unfinished -= set() if operation == "token" else {affected}
        for events, sequence_id in zip(received, sequence_ids, strict=True):
            events += ["token" if isinstance(event, TokenEvent) else "end"
                       for event in setup.streams[sequence_id].take_events()]
        assert (received, len(setup.client_streams)) == (expected, len(unfinished))


# -- records and metrics


@pytest.mark.parametrize("end", ENDS)
def test_request_is_counted_when_it_is_accepted_and_its_preemptions_when_it_ends(end: str) -> None:
    setup = StreamsSetup()
    sequence_id = setup.open()
    setup.scheduler.get_request_timeline(sequence_id).enter_phase(RequestPhase.PREEMPTED, SUBMITTED_AT)
    assert setup.get_sample("tgi_request_input_length_count") == 1
    assert setup.get_sample("tgi_request_yields") == 0
    ENDS[end](setup, sequence_id)
    assert setup.get_sample("tgi_request_yields") == 1


def test_generated_tokens_are_counted() -> None:
    setup = StreamsSetup()
    setup.dispatch(TokensGenerated({setup.open(): 1, setup.open(): 1}))
    assert setup.get_sample("tgi_batch_generated_tokens") == 2


@pytest.mark.parametrize(("given_time", "expected"), [(None, SUBMITTED_AT), (0.0, 0.0), (1.5, 1.5)])
def test_time_to_first_token_is_counted_once_and_from_the_arrival(monkeypatch: pytest.MonkeyPatch,
                                                                  given_time: float | None, expected: float) -> None:
    times = iter([10.0, 25.0])
    monkeypatch.setattr(client_streams, "now", lambda: next(times))
    setup = StreamsSetup()
    sequence_id = setup.open(arrived_at=given_time)
    setup.generate(sequence_id, b"a")
    setup.generate(sequence_id, b"b")
    assert setup.get_record(sequence_id).arrived_at == expected
    assert setup.get_sample("tgi_request_time_to_first_token_duration_count") == 1
    assert setup.get_sample("tgi_request_time_to_first_token_duration_sum") == 10.0 - expected


@pytest.mark.parametrize(("adapter", "name", "recorded"), [
    (None, "", None), (LoadableResource("adapter", 1), "", ""), (LoadableResource("adapter", 1), "mine", "mine")])
def test_private_adapter_is_recorded_without_its_name(adapter: LoadableResource | None, name: str,
                                                      recorded: str | None) -> None:
    setup = StreamsSetup()
    setup.scheduler.on_resource_loaded(LoadableResource("adapter", 1), 0.0)
    sequence_id = setup.open(adapter=adapter, adapter_name=name)
    assert setup.get_record(sequence_id).adapter_name == recorded


def test_later_request_with_the_same_id_keeps_its_record_when_the_earlier_one_ends() -> None:
    setup = StreamsSetup()
    streams = setup.client_streams
    requests = [Request("same", prompt, 5) for prompt in ((1,), (1, 2))]
    first, second = [setup.scheduler.submit(request, 0.0)[0].sequence_id  # type: ignore[union-attr]
                     for request in requests]
    streams.open_stream(requests[0], first)
    streams.open_stream(requests[1], second)
    setup.dispatch(SequenceFinished(first, FinishReason.LENGTH))
    record = streams.request_records.get("same")
    assert record is not None
    assert (record.num_prompt_tokens, record.state) == (2, "waiting")


# -- clients that do not read


def test_only_the_sequence_of_the_slow_client_is_suspended() -> None:
    async def scenario(setup: StreamsSetup) -> None:
        slow, other = setup.open(), setup.open()
        setup.generate(other, b"x")
        setup.generate(slow, TOKENS_BEYOND_BUFFER)
        assert setup.scheduler.sequences[slow].is_suspended
        assert not setup.scheduler.sequences[other].is_suspended
    run_scenario(scenario, slow_client_buffer=SMALLEST_BUFFER)


def test_client_that_reads_in_time_goes_on() -> None:
    async def scenario(setup: StreamsSetup) -> None:
        sequence_id = setup.open()
        setup.generate(sequence_id, TOKENS_BEYOND_BUFFER)
        assert setup.take_text(sequence_id) == TOKENS_BEYOND_BUFFER.decode()
        assert (setup.scheduler.sequences[sequence_id].is_suspended, setup.num_wakes) == (False, 1)
        await wait_for_timers()
        assert len(setup.client_streams) == 1
    run_scenario(scenario, slow_client_buffer=SMALLEST_BUFFER, slow_client_timeout=0.0)


@pytest.mark.parametrize("num_earlier_suspensions", [0, 1, 2])
def test_client_that_does_not_read_in_time_is_cancelled(num_earlier_suspensions: int) -> None:
    async def scenario(setup: StreamsSetup) -> None:
        sequence_id = setup.open(max_new_tokens=200)
        for _ in range(num_earlier_suspensions):
            setup.generate(sequence_id, TOKENS_BEYOND_BUFFER)
            setup.take_text(sequence_id)
        setup.generate(sequence_id, TOKENS_BEYOND_BUFFER)
        await setup.client_streams.all_finished.wait()
        failure = setup.streams[sequence_id].failure
        assert (type(failure), str(failure)) == (Cancelled, "the client did not read for 0.0 seconds")
        assert setup.scheduler.sequences.get(sequence_id) is None
    run_scenario(scenario, slow_client_buffer=SMALLEST_BUFFER, slow_client_timeout=0.0)


@pytest.mark.parametrize("end", ENDS)
def test_timer_of_a_slow_client_stops_with_its_request(end: str) -> None:
    async def scenario(setup: StreamsSetup) -> None:
        sequence_id = setup.open()
        setup.generate(sequence_id, TOKENS_BEYOND_BUFFER)
        [timer] = setup.client_streams._slow_client_timers.values()
        ENDS[end](setup, sequence_id)
        assert timer.cancelled()
        setup.streams[sequence_id].take_events()  # a late read
        assert not setup.client_streams._slow_client_timers
    run_scenario(scenario, slow_client_buffer=SMALLEST_BUFFER)


def test_arriving_requests_of_one_id_are_counted() -> None:
    arriving = ArrivingRequests()
    arriving.discard("a")
    assert arriving.none_left.is_set()
    for request_id in ("a", "a", "b"):
        arriving.add(request_id)
    for request_id in ("a", "b", "b"):
        arriving.discard(request_id)
        assert not arriving.none_left.is_set()
    arriving.discard("a")
    assert arriving.none_left.is_set()
