"""Tests of benchmarks/bench/load/generator.py and client.py, against a server whose behaviour each prompt selects."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from benchmarks.bench.load import generator
from benchmarks.bench.load.client import Answer, Target, check_json, printable
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import drive
from benchmarks.bench.load.http import Head, NoAnswer
from benchmarks.bench.load.record import Ask, Record


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "REST", 0.0)


class House:
    """Fake server of TGI's dialect and the study's; the prompt may select a failure."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.here = self.most = 0

    async def stream(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        if asked["inputs"] == "refuse":
            return web.json_response({"error": "too long", "error_type": "validation"}, status=422)
        if asked["inputs"] == "hang":
            await asyncio.Event().wait()
        self.here += 1
        self.most = max(self.most, self.here)
        answer = web.StreamResponse()
        await answer.prepare(request)
        count = asked["parameters"]["max_new_tokens"]
        for number in range(count - 1 if asked["inputs"] == "break off" else count):
            details = {"generated_tokens": count, "input_length": 3} if number == count - 1 else None
            event = {"token": {"id": 1}, "generated_text": details and "all", "details": details}
            end = "" if asked["inputs"] == "stop short" else "\n\n"
            await answer.write(f"data:{json.dumps(event)}{end}".encode())
        if asked["inputs"] == "stammer":
            await answer.write(b"data: {1}\n\n")
        if asked["inputs"] == "fail":
            await answer.write(b'data:{"error": "the shard died", "error_type": "generation"}\n\n')
        self.here -= 1
        return answer

    async def inference(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        return web.json_response({"completion": "all"}, headers={"X-Weft-Seconds": "0.250000"})


def play(asks: list[Ask], dialect: str = "tgi", timeout: float = 10.0, patience: float = 20.0,
         **how: Any) -> tuple[list[Record], House]:
    async def told() -> tuple[list[Record], House]:
        house, app = House(), web.Application()
        app.add_routes([web.post("/generate_stream", house.stream), web.post("/inference", house.inference)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            return await drive(Target(url, DIALECTS[dialect], timeout=timeout), asks, **how), house
        finally:
            await runner.cleanup()
    return asyncio.run(asyncio.wait_for(told(), patience))


def some(count: int, prompt: str = "say", at: Callable[[int], float | None] = lambda _: None) -> list[Ask]:
    return [Ask(number, prompt, 5 + number, at=at(number)) for number in range(count)]


def test_every_token_is_noted_when_it_came() -> None:
    [record], _ = play(some(1), concurrency=1)
    assert (len(record.times), record.num_tokens, record.prompt_tokens, record.status, record.error) == (
        5, 5, 3, 200, "")
    assert 0 <= record.sent <= record.times[0] <= record.times[-1] <= record.ended


def test_so_many_clients_take_turns() -> None:
    records, house = play(some(20), concurrency=3)
    assert {record.num_tokens for record in records} == set(range(5, 25))
    assert house.most <= 3


def test_no_request_is_sent_before_its_moment() -> None:
    records, _ = play(some(5, at=lambda number: 0.02 * number))
    assert all(record.sent >= 0.02 * record.ask.number - 0.001 for record in records)


def test_what_was_late_waited_from_when_it_was_due() -> None:
    [record], _ = play(some(1, at=lambda _: -1.0))
    assert record.sent >= 0
    assert min(record.latency, record.first_token or 0.0) > 1.0


def test_clients_that_have_no_time_left_ask_nothing() -> None:
    records, house = play(some(5), concurrency=2, seconds=-1.0)
    assert records == [] == house.asked


@pytest.mark.parametrize(("prompt", "reason"), [
    ("refuse", "422: too long"), ("fail", "the shard died"), ("hang", "no answer within 0.3 s"),
    ("stammer", "an event that cannot be read"), ("break off", "the answer broke off")])
def test_what_goes_wrong_is_in_the_record_and_nobody_else_is_affected(prompt: str, reason: str) -> None:
    records, _ = play([*some(3), Ask(9, prompt, 5)], concurrency=4, timeout=0.3 if prompt == "hang" else 10.0)
    [error] = [record.error for record in records if record.error]
    assert error.startswith(reason)
    assert len(records) == 4


def test_tokens_before_a_failure_count() -> None:
    [record], _ = play([Ask(0, "stammer", 5)], concurrency=1)
    assert (record.num_tokens, len(record.times)) == (5, 5)


def test_a_last_line_without_an_end_is_read_too() -> None:
    [record], _ = play([Ask(0, "stop short", 1)], concurrency=1)
    assert (record.num_tokens, len(record.times), record.error) == (1, 1, "")


def answered_by(*events: str, more: str = "", tokens: int = 1) -> Record:
    """Return the record of an answer with these events in OpenAI's dialect."""
    record = Record(Ask(0, "a", tokens), 0.0)
    answer = Answer(DIALECTS["openai"], record, 0.0, None)
    answer.heard(200, ("".join(f"data: {event}\n\n" for event in events) + more).encode(), 1.0)
    answer.end(Head(200, None, True, True, {}))
    return record


def test_tokens_that_say_nothing_are_an_answer_where_the_server_counts_them() -> None:
    """An example is a token that only ends the text."""
    record = answered_by('{"choices": [{"text": "", "finish_reason": "length"}]}',
                         '{"choices": [], "usage": {"completion_tokens": 1}}', "[DONE]")
    assert (record.num_tokens, record.first_token, record.error) == (1, None, "")


def test_a_server_that_does_not_say_the_end_has_told_all_that_was_asked_for() -> None:
    """TGI 2.0 has an empty finish reason in every chunk, and no [DONE]."""
    assert answered_by('{"choices": [{"text": "a", "finish_reason": ""}]}').error == ""


def test_half_an_event_is_an_answer_that_broke_off() -> None:
    record = answered_by(more='data: {"choices": [{"te', tokens=2)
    assert record.error == "an answer without a token"
    record = answered_by('{"choices": [{"text": "a"}]}', more='data: {"choices": [{"te', tokens=2)
    assert record.error.startswith("the answer broke off")


def test_without_tokens_it_is_none() -> None:
    assert answered_by('{"choices": [{"text": "", "finish_reason": "stop"}]}').error == "an answer without a token"


def test_an_error_can_be_written_to_any_file() -> None:
    """JSON may contain half of a surrogate pair."""
    assert printable(json.loads('"\\ud800 é"')) == "\\ud800 é"


def test_an_answer_that_is_no_json_is_said_to_be_none() -> None:
    with pytest.raises(NoAnswer, match=r"^an answer that is no JSON: b'gone'$"):
        check_json(b"gone")


def test_who_was_refused_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)
    monkeypatch.setattr(generator.asyncio, "sleep", rest)
    asyncio.run(drive(Target("127.0.0.1:1", DIALECTS["tgi"]), some(3), 1))
    assert rests == [generator.REST] * 3


def test_what_was_answered_is_kept_when_the_rest_is_called_off() -> None:
    records: list[Record] = []
    with pytest.raises(TimeoutError):
        play([*some(3), Ask(9, "hang", 5)], concurrency=1, records=records, patience=0.5)
    assert [record.ask.number for record in records] == [0, 1, 2]


def test_a_server_that_is_not_there_is_in_every_record() -> None:
    records = asyncio.run(drive(Target("127.0.0.1:1", DIALECTS["tgi"]), some(2)))
    assert [record.error.partition(":")[0] for record in records] == ["nobody answers at 127.0.0.1"] * 2


def test_an_answer_that_is_not_streamed_has_as_many_tokens_as_were_asked_for() -> None:
    [record], house = play(some(1), "batching", concurrency=1)
    assert (record.num_tokens, list(record.times), record.first_token, record.told_seconds) == (5, [], None, 0.25)
    assert house.asked == [{"prompt": "say", "num_tokens": 5}]


class Onlooker:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def sent(self, record: Record) -> None:
        self.seen.append("sent")

    def token(self, record: Record) -> None:
        self.seen.append("token")

    def ended(self, record: Record) -> None:
        self.seen.append("ended")


def test_who_looks_on_sees_everything() -> None:
    onlooker = Onlooker()
    play(some(1), concurrency=1, watch=onlooker)
    assert onlooker.seen == ["sent", *["token"] * 5, "ended"]
