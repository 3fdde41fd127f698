"""Spans of a request: times, attributes and usage."""

import time

import pytest
from support.span_sender import Notes

from router.request import FinishReason, Request, SamplingParams
from router.scheduler.timeline import Cause, Story
from router.telemetry.request_log import Account
from router.telemetry.spans import CHAT, EMBEDDINGS, MOST_PARTS, MOST_TEXTS, TEXT, Spans
from router.validation.validator import Choice

CAME = 100.0
SECOND = 10**9
TURNS = ((101.0, Cause.QUEUE), (102.0, Cause.BLOCKS), (105.0, Cause.PREFILL), (106.0, Cause.DECODE))


@pytest.fixture(autouse=True)
def at_200(monkeypatch):
    """Fix the monotonic clock and the system clock at the end of the tests' requests."""
    monkeypatch.setattr("router.telemetry.spans.now", lambda: 200.0)
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_200 * SECOND)


def account(*turns, ended=110.0, name="mine", **fields):
    story = Story(*turns[0])
    for moment, cause in turns[1:]:
        story.turn(cause, moment)
    story.end(ended)
    story.cached_tokens = 2
    return Account(name, "", 3, CAME, story, **{"num_generated": 5, "finish_reason": FinishReason.END_TOKEN} | fields)


def choice(seed=None, **fields):
    return Choice(Request("mine", (1, 2, 3), 7, **fields), seed)


def told(*texts, operation=TEXT, outcome=None, failed=False, **headers):
    notes = Notes()
    traced = Spans(notes, "demo").begin(operation, "mine", headers, CAME)
    for text in texts:
        traced.follow(*text)
    traced.end(outcome or {}, failed=failed)
    (span,) = notes.spans
    assert span.traceparent == traced.traceparent
    return span


def test_a_request_is_told_under_the_name_of_what_it_does():
    span = told(operation=CHAT, outcome={"url.path": "/v1"}, failed=True, traceparent="00-a")
    assert (span.name, span.parent, span.failed) == ("chat demo", "00-a", True)
    assert span.attributes == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "weft", "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo", "gen_ai.response.id": "mine", "url.path": "/v1"}


def test_times_are_those_of_the_calendar():
    span = told()
    assert (span.began, span.ended) == (1_000_100 * SECOND, 1_000_200 * SECOND)


def test_what_its_time_went_to_is_told_beneath_without_a_gap():
    span = told((choice(), account(*TURNS)))
    assert [(part.name, part.began - span.began, part.ended - span.began) for part in span.children] == [
        ("validation", 0, SECOND), ("queue", SECOND, 5 * SECOND), ("prefill", 5 * SECOND, 6 * SECOND),
        ("decode", 6 * SECOND, 10 * SECOND)]
    assert span.children[1].attributes == {"weft.request_id": "mine", "weft.wait_reason": "blocks"}


def test_who_gives_its_blocks_back_waits_and_starts_again():
    again = ((107.0, Cause.YIELDED), (108.0, Cause.PREFILL), (109.0, Cause.DECODE))
    parts = told((choice(), account(*TURNS, *again))).children
    assert [part.name for part in parts] == [
        "validation", "queue", "prefill", "decode", "queue", "prefill", "decode"]
    assert parts[4].attributes["weft.wait_reason"] == "yielded"


def test_who_pauses_without_end_is_told_of_with_so_many_parts():
    pauses = [(102.0 + step / 100, (Cause.DECODE, Cause.READER)[step % 2]) for step in range(400)]
    assert len(told((choice(), account((101.0, Cause.PREFILL), *pauses))).children) == 1 + MOST_PARTS


def test_of_many_texts_some_are_told_of_and_all_are_counted():
    span = told(*[(choice(), account(*TURNS))] * (MOST_TEXTS + 8), operation=EMBEDDINGS)
    assert len(span.children) == 1 + 3 * MOST_TEXTS
    assert span.attributes["gen_ai.usage.input_tokens"] == 3 * (MOST_TEXTS + 8)


def test_what_was_asked_for_is_told_in_numbers():
    sampling = SamplingParams(temperature=0.5, top_k=9, presence_penalty=0.25)
    found = told((choice(11, sampling=sampling, stop_strings=("stop", "end")), account(*TURNS))).attributes
    assert {name: value for name, value in found.items() if name.startswith("gen_ai.request.")} == {
        "gen_ai.request.model": "demo", "gen_ai.request.max_tokens": 7, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 9, "gen_ai.request.presence_penalty": 0.25, "gen_ai.request.seed": 11,
        "gen_ai.request.stop_sequences": ("stop", "end")}


def test_a_seed_beyond_what_the_protocol_can_say_is_left_out():
    """Such a number would lose all spans that are exported with it."""
    assert "gen_ai.request.seed" in told((choice(2**63 - 1), account(*TURNS))).attributes
    assert "gen_ai.request.seed" not in told((choice(2**63), account(*TURNS))).attributes


def test_how_it_went_is_told():
    found = told((choice(), account(*TURNS))).attributes
    assert {name: value for name, value in found.items() if "usage" in name or "latency" in name} == {
        "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 5, "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.latency.time_in_queue": 4.0, "gen_ai.latency.time_to_first_token": 6.0,
        "gen_ai.latency.time_in_model_prefill": 1.0, "gen_ai.latency.time_in_model_decode": 4.0,
        "gen_ai.latency.e2e": 100.0}
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found["gen_ai.response.time_to_first_chunk"] == 6.0


def test_a_text_of_one_token_has_it_when_its_prompt_is_computed():
    found = told((choice(), account(*TURNS[:3], num_generated=1, finish_reason=FinishReason.LENGTH))).attributes
    assert found["gen_ai.response.time_to_first_chunk"] == 10.0
    assert found["gen_ai.response.finish_reasons"] == ["length"]


def test_who_left_before_its_first_token_has_neither_it_nor_a_reason():
    found = told((choice(), account(*TURNS[:2], num_generated=0, finish_reason=None))).attributes
    assert not {"gen_ai.response.time_to_first_chunk", "gen_ai.response.finish_reasons"} & found.keys()


def test_several_texts_are_told_together():
    span = told((choice(), account(*TURNS)), (choice(), account(*TURNS, name="mine-2", ended=111.0)))
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert span.attributes["gen_ai.usage.output_tokens"] == 10
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop", "stop"]
    assert [part.attributes.get("weft.request_id") for part in span.children] == [None] + ["mine"] * 3 + ["mine-2"] * 3
