"""Tests of benchmarks/bench/load/generator.py, against a server whose behaviour each prompt selects."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from benchmarks.bench.load import generator
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import (
    ResponseReader,
    Target,
    check_is_json,
    escape_surrogates,
    raise_first_failure,
    run_load,
)
from benchmarks.bench.load.http import RequestFailedError, ResponseHead
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "RETRY_PAUSE_SECONDS", 0.0)


class FakeServer:
    """Fake server of TGI's dialect and the study's; the prompt may select a failure."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.num_active = self.max_active = 0

    async def handle_generate_stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if body["inputs"] == "refuse":
            return web.json_response({"error": "too long", "error_type": "validation"}, status=422)
        if body["inputs"] == "hang":
            await asyncio.Event().wait()
        self.num_active += 1
        self.max_active = max(self.max_active, self.num_active)
        answer = web.StreamResponse()
        await answer.prepare(request)
        count = body["parameters"]["max_new_tokens"]
        for number in range(count - 1 if body["inputs"] == "break off" else count):
            details = {"generated_tokens": count, "input_length": 3} if number == count - 1 else None
            event = {"token": {"id": 1}, "generated_text": details and "all", "details": details}
            end = "" if body["inputs"] == "stop short" else "\n\n"
            await answer.write(f"data:{json.dumps(event)}{end}".encode())
        if body["inputs"] == "stammer":
            await answer.write(b"data: {1}\n\n")
        if body["inputs"] == "fail":
            await answer.write(b'data:{"error": "the shard died", "error_type": "generation"}\n\n')
        self.num_active -= 1
        return answer

    async def handle_inference(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.json_response({"completion": "all"}, headers={"X-Weft-Seconds": "0.250000"})


def run_generator(requests: list[PlannedRequest], dialect: str = "tgi", timeout: float = 10.0,
                  total_timeout: float = 20.0, **drive_options: Any) -> tuple[list[RequestRecord], FakeServer]:
    async def run_with_server() -> tuple[list[RequestRecord], FakeServer]:
        server, app = FakeServer(), web.Application()
        app.add_routes([web.post("/generate_stream", server.handle_generate_stream),
                        web.post("/inference", server.handle_inference)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            return await run_load(Target(url, DIALECTS[dialect], timeout=timeout), requests, **drive_options), server
        finally:
            await runner.cleanup()
    return asyncio.run(asyncio.wait_for(run_with_server(), total_timeout))


def make_requests(count: int, prompt: str = "say",
                  due_at: Callable[[int], float | None] = lambda _: None) -> list[PlannedRequest]:
    return [PlannedRequest(number, prompt, 5 + number, at=due_at(number)) for number in range(count)]


def test_token_times_are_recorded() -> None:
    [record], _ = run_generator(make_requests(1), concurrency=1)
    assert (len(record.times), record.num_tokens, record.prompt_tokens, record.status, record.error) == (
        5, 5, 3, 200, "")
    assert 0 <= record.sent <= record.times[0] <= record.times[-1] <= record.ended


def test_concurrency_limits_simultaneous_requests() -> None:
    records, server = run_generator(make_requests(20), concurrency=3)
    assert {record.num_tokens for record in records} == set(range(5, 25))
    assert server.max_active <= 3


def test_no_request_is_sent_before_it_is_due() -> None:
    records, _ = run_generator(make_requests(5, due_at=lambda number: 0.02 * number))
    assert all(record.sent >= 0.02 * record.ask.number - 0.001 for record in records)


def test_latency_of_a_late_request_starts_when_it_was_due() -> None:
    [record], _ = run_generator(make_requests(1, due_at=lambda _: -1.0))
    assert record.sent >= 0
    assert min(record.latency, record.time_to_first_token or 0.0) > 1.0


def test_clients_send_nothing_after_the_time_limit() -> None:
    records, server = run_generator(make_requests(5), concurrency=2, seconds=-1.0)
    assert records == [] == server.bodies


@pytest.mark.parametrize(("prompt", "reason"), [
    ("refuse", "422: too long"), ("fail", "the shard died"), ("hang", "no answer within 0.3 s"),
    ("stammer", "an event that cannot be read"), ("break off", "the answer broke off")])
def test_failure_is_recorded_and_does_not_affect_others(prompt: str, reason: str) -> None:
    records, _ = run_generator([*make_requests(3), PlannedRequest(9, prompt, 5)], concurrency=4,
                               timeout=0.3 if prompt == "hang" else 10.0)
    [error] = [record.error for record in records if record.error]
    assert error.startswith(reason)
    assert len(records) == 4


def test_tokens_before_a_failure_count() -> None:
    [record], _ = run_generator([PlannedRequest(0, "stammer", 5)], concurrency=1)
    assert (record.num_tokens, len(record.times)) == (5, 5)


def test_last_line_without_a_newline_is_read() -> None:
    [record], _ = run_generator([PlannedRequest(0, "stop short", 1)], concurrency=1)
    assert (record.num_tokens, len(record.times), record.error) == (1, 1, "")


def record_events(*events: str, trailing_text: str = "", num_tokens: int = 1) -> RequestRecord:
    """Return the record of an answer with these events in OpenAI's dialect."""
    record = RequestRecord(PlannedRequest(0, "a", num_tokens), 0.0)
    answer = ResponseReader(DIALECTS["openai"], record, 0.0, None)
    answer.feed(200, ("".join(f"data: {event}\n\n" for event in events) + trailing_text).encode(), 1.0)
    answer.finish(ResponseHead(200, None, True, True, {}))
    return record


def test_empty_tokens_count_where_the_server_counts_them() -> None:
    """An example is a token that only ends the text."""
    record = record_events('{"choices": [{"text": "", "finish_reason": "length"}]}',
                           '{"choices": [], "usage": {"completion_tokens": 1}}', "[DONE]")
    assert (record.num_tokens, record.time_to_first_token, record.error) == (1, None, "")


def test_answer_without_done_event_is_complete_with_all_its_tokens() -> None:
    """TGI 2.0 has an empty finish reason in every chunk, and no [DONE]."""
    assert record_events('{"choices": [{"text": "a", "finish_reason": ""}]}').error == ""


def test_incomplete_event_is_a_broken_answer() -> None:
    record = record_events(trailing_text='data: {"choices": [{"te', num_tokens=2)
    assert record.error == "an answer without a token"
    record = record_events('{"choices": [{"text": "a"}]}', trailing_text='data: {"choices": [{"te', num_tokens=2)
    assert record.error.startswith("the answer broke off")


def test_answer_without_tokens_is_an_error() -> None:
    assert record_events('{"choices": [{"text": "", "finish_reason": "stop"}]}').error == "an answer without a token"


def test_error_text_is_printable() -> None:
    """JSON may contain half of a surrogate pair."""
    assert escape_surrogates(json.loads('"\\ud800 é"')) == "\\ud800 é"


def test_answer_that_is_not_json_is_an_error() -> None:
    with pytest.raises(RequestFailedError, match=r"^an answer that is no JSON: b'gone'$"):
        check_is_json(b"gone")


def test_rejected_client_waits_before_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)
    monkeypatch.setattr(generator.asyncio, "sleep", record_pause)
    asyncio.run(run_load(Target("127.0.0.1:1", DIALECTS["tgi"]), make_requests(3), 1))
    assert pauses == [generator.RETRY_PAUSE_SECONDS] * 3


def test_records_are_kept_when_a_run_is_cancelled() -> None:
    records: list[RequestRecord] = []
    with pytest.raises(TimeoutError):
        run_generator([*make_requests(3), PlannedRequest(9, "hang", 5)], concurrency=1, records=records,
                      total_timeout=0.5)
    assert [record.ask.number for record in records] == [0, 1, 2]


def test_unreachable_server_is_in_every_record() -> None:
    records = asyncio.run(run_load(Target("127.0.0.1:1", DIALECTS["tgi"]), make_requests(2)))
    assert [record.error.partition(":")[0] for record in records] == ["nobody answers at 127.0.0.1"] * 2


def test_unstreamed_answer_counts_the_requested_tokens() -> None:
    [record], server = run_generator(make_requests(1), "batching", concurrency=1)
    assert (record.num_tokens, list(record.times), record.time_to_first_token,
            record.told_seconds) == (5, [], None, 0.25)
    assert server.bodies == [{"prompt": "say", "num_tokens": 5}]


class RecordingObserver:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_request_sent(self, record: RequestRecord) -> None:
        self.calls.append("sent")

    def on_token(self, record: RequestRecord) -> None:
        self.calls.append("token")

    def on_request_ended(self, record: RequestRecord) -> None:
        self.calls.append("ended")


def test_observer_sees_every_event() -> None:
    observer = RecordingObserver()
    run_generator(make_requests(1), concurrency=1, observer=observer)
    assert observer.calls == ["sent", *["token"] * 5, "ended"]


def test_clients_keep_the_times_of_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their requests have times, so that a failure is no reason to wait longer."""
    pauses = []

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)
    monkeypatch.setattr(generator.asyncio, "sleep", record_pause)
    requests = make_requests(2, due_at=lambda number: 100.0 * number)
    asyncio.run(run_load(Target("127.0.0.1:1", DIALECTS["tgi"]), requests, 1))
    assert pauses == [pytest.approx(100.0, abs=5.0)]


def test_first_failure_is_raised() -> None:
    records = [RequestRecord(PlannedRequest(0, "a", 1), 0.0), RequestRecord(PlannedRequest(1, "a", 1), 0.0, error="no")]
    raise_first_failure(records[:1])
    with pytest.raises(ValueError, match="a request failed: no"):
        raise_first_failure(records)
