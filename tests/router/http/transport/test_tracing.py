"""Spans of HTTP requests: which requests have one, and the outcome in it."""

import asyncio
import json

import pytest
from support.expected_streams import said
from support.span_sender import Notes

from router.engine.stream import FailedEvent
from router.errors import GenerationFailed, NotReady, Overloaded
from router.http.transport.generate import About

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4}
SECRET = {"inputs": "a secret", "parameters": {"max_new_tokens": 4}}


@pytest.fixture
def told(serve):
    """Send one request and return its span, or None, and the engine."""
    def run(path, body, *scripts, refusal=None, headers=()):
        notes = Notes()

        async def scenario(client, engine):
            if refusal is not None:
                engine.refusals.append(refusal)
            answer = await client.post(path, data=json.dumps(body),
                                       headers=[("Content-Type", "application/json"), *headers])
            await answer.read()
            return engine

        engine = serve(scenario, *scripts, about=About("demo"), sender=notes)
        assert len(notes.spans) <= 1
        return (notes.spans or [None])[0], engine
    return run


@pytest.mark.parametrize(("path", "body", "name"), [
    ("/v1/chat/completions", CHAT, "chat demo"),
    ("/invocations", CHAT, "chat demo"),
    ("/generate", SECRET, "text_completion demo"),
    ("/", SECRET, "text_completion demo"),
    ("/v1/completions", {"prompt": "a secret", "max_tokens": 4}, "text_completion demo"),
    ("/vertex", {"instances": [SECRET, SECRET]}, "text_completion demo"),
])
def test_a_request_for_texts_is_told_of(told, path, body, name):
    span, engine = told(path, body)
    assert (span.name, span.failed) == (name, False)
    assert (span.attributes["url.path"], span.attributes["http.response.status_code"]) == (path, 200)
    assert span.attributes["gen_ai.request.max_tokens"] == 4
    for stream in engine.streams:
        assert engine.account(stream.request.id).traceparent == span.traceparent


def test_no_text_is_told(told):
    for path, body in (("/generate", SECRET), ("/v1/chat/completions", CHAT), ("/generate_stream", SECRET)):
        span, _ = told(path, body)
        assert "secret" not in repr(span)


def test_what_asks_for_no_text_is_not_told_of(told):
    for path in ("/tokenize", "/nowhere"):
        assert told(path, {"inputs": "a"})[0] is None


@pytest.mark.parametrize(("path", "body"), [
    ("/generate_stream", SECRET), ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/completions", {"prompt": ["a", "b"], "stream": True})])
def test_a_stream_is_told_of_when_it_is_over(told, path, body):
    span, _ = told(path, body)
    assert span.attributes["gen_ai.request.stream"] is True
    assert "gen_ai.usage.input_tokens" in span.attributes


def test_the_answer_that_is_no_stream_is_not_called_one(told):
    assert "gen_ai.request.stream" not in told("/generate", SECRET)[0].attributes


@pytest.mark.parametrize(("headers", "parent"), [
    ([], ""),
    ([("traceparent", PARENT)], PARENT),
    ([("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")], PARENT),
    ([("traceparent", PARENT), ("traceparent", PARENT)], ""),
])
def test_the_parent_is_the_one_that_the_client_names(told, headers, parent):
    assert told("/generate", SECRET, headers=headers)[0].parent == parent


@pytest.mark.parametrize(("refusal", "error", "status", "failed"), [
    (Overloaded("too many"), "overloaded", 429, False),
    (NotReady("no shards"), "overloaded", 503, True),
    (GenerationFailed("broken"), "generation", 424, True),
    (RuntimeError("a mistake"), "incomplete", 500, True),
])
def test_what_went_wrong_is_told_and_whether_it_was_us(told, refusal, error, status, failed):
    span, _ = told("/generate", SECRET, refusal=refusal)
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == (error, status)
    assert span.failed == failed
    assert span.children == []


def test_what_makes_no_sense_is_told_of_too(told):
    span, _ = told("/generate", {"inputs": "", "parameters": {}})
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("validation", 422)
    assert not span.failed


def test_a_stream_that_fails_is_told_as_one(told):
    span, _ = told("/generate_stream", SECRET, [*said("we")[:1], FailedEvent(GenerationFailed("broken"))])
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("generation", 200)
    assert span.failed


def test_a_client_that_leaves_ends_its_span(serve):
    notes = Notes()

    async def scenario(client, engine):
        asking = asyncio.create_task(client.post("/generate", json=SECRET))
        await engine.asked.wait()
        asking.cancel()
        await engine.left_alone.wait()

    serve(scenario, [], about=About("demo"), sender=notes)
    (span,) = notes.spans
    assert (span.attributes["error.type"], span.failed) == ("dropped", False)
    assert "http.response.status_code" not in span.attributes
