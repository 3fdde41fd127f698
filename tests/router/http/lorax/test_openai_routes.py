"""LoRAX's variant of OpenAI's routes, over a scripted engine."""

import json
import re

import pytest
from support.expected_streams import lived, said
from support.fake_adapter_store import Store

from router.config import RouterConfig
from router.engine.stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed
from router.request import FinishReason
from router.text.chat_template import ChatTemplate, plain_template

LORAX = RouterConfig(compat="lorax")
HELLO = [{"role": "user", "content": "hi"}]
CHAT, TEXT = {"messages": HELLO}, {"prompt": "hi"}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT}
CHANGING = re.compile(r'"created":\d{2,}|"system_fingerprint":"[^"]*"')
STOPPED = said("ab", FinishReason.STOP_STRING)
ENDED = [TokenEvent(97, "a", -0.5, False), TokenEvent(256, "<|end|>", -0.5, True),
         FinishedEvent(FinishReason.END_TOKEN, "a", 2, lived())]
BROKEN = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]
CALL = '<tool_call>{"name": "paint", "arguments": {"colour": "red"}}</tool_call>'
CALLED = [TokenEvent(97, CALL, -0.5, False), TokenEvent(256, "<|end|>", -0.5, True),
          FinishedEvent(FinishReason.END_TOKEN, CALL, 2, lived())]
TOOLED = ChatTemplate("{{ tools | tojson }}{{ messages[0].content }}<tool_call>", {})
PAINT = [{"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}]
USAGE = '{"prompt_tokens":20,"total_tokens":22,"completion_tokens":2}'
TEXT_USAGE = USAGE.replace("20", "2").replace("22", "4")
NO_USAGE = '{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}'
OUT = '"id":"null","object":"text_completion","created":0,"model":"null"'
CHUNK = OUT.replace("text_completion", "chat.completion.chunk")
FAILURE = 'data:{"error":"Request failed during generation: broken","error_type":"generation"}\n\n'
WHOLE = {
    "a chat": (
        "/v1/chat/completions", CHAT, STOPPED,
        '{"id":"null","object":"text_completion","created":-,"model":"loom","choices":[{"index":0,"message":'
        f'{{"role":"assistant","content":"ab"}},"finish_reason":"content_filter"}}],"usage":{USAGE},'
        '"system_fingerprint":-}'),
    "calls": (
        "/v1/chat/completions", {**CHAT, "tools": PAINT}, CALLED,
        '{"id":"null","object":"text_completion","created":-,"model":"loom","choices":[{"index":0,"message":'
        '{"role":"assistant","tool_calls":[{"id":"0","type":"function","function":{"description":null,"name":"paint",'
        '"arguments":"{\\"colour\\": \\"red\\"}"}}]},"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":100,"total_tokens":102,"completion_tokens":2},"system_fingerprint":-}'),
    "a text": (
        "/v1/completions", TEXT, said("ab"),
        f'{{{OUT},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
        f'"usage":{TEXT_USAGE}}}'),
    "a text behind its prompt": (
        "/v1/completions", {**TEXT, "echo": True, "logprobs": 1}, ENDED,
        f'{{{OUT},"choices":[{{"index":0,"text":"hia","logprobs":null,"finish_reason":"stop"}}],'
        f'"usage":{TEXT_USAGE}}}'),
    "SageMaker": (
        "/invocations", TEXT, said("ab"),
        f'{{{OUT},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
        f'"usage":{TEXT_USAGE}}}'),
}
STREAMS = {
    "a chat that ended": (
        "/v1/chat/completions", CHAT, ENDED,
        f'data:{{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},"finish_reason":null}}]}}'
        f'\n\ndata:{{{CHUNK},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"usage":{USAGE}}}\n\n'
        'data:[DONE]\n\n'),
    "a chat that was stopped": (
        "/v1/chat/completions", CHAT, STOPPED,
        f'data:{{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},"finish_reason":null}}]}}'
        f'\n\ndata:{{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"b"}},'
        f'"finish_reason":"content_filter"}}],"usage":{USAGE}}}\n\ndata:[DONE]\n\n'),
    "a text that ended": (
        "/v1/completions", TEXT, ENDED,
        f'data:{{{OUT},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":null}}],"usage":{NO_USAGE}}}'
        f'\n\ndata:{{{OUT},"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}}],'
        f'"usage":{TEXT_USAGE}}}\n\ndata:[DONE]\n\n'),
    "a chat that failed": ("/v1/chat/completions", CHAT, BROKEN[1:], FAILURE),
    "a text that failed": ("/v1/completions", TEXT, BROKEN[1:], FAILURE),
    "what is wrong": (
        "/v1/completions", {"prompt": ""}, [],
        'data:{"error":"Input validation error: `inputs` cannot be empty","error_type":"validation"}\n\n'),
}


def still(text):
    return CHANGING.sub(lambda found: found[0].partition(":")[0] + ":-", text)


def template_of(body):
    return TOOLED if "tools" in body else plain_template()


def asked(serve, path, *bodies, **settings):
    """Post the bodies, each with the fields that the route requires, and return the engine's requests."""
    async def scenario(client, engine):
        for body in bodies:
            answer = await client.post(path, json=PATHS[path] | body)
            assert answer.status == 200, await answer.text()
        return engine.requests
    return serve(scenario, config=LORAX, **settings)


@pytest.mark.parametrize(("path", "body", "script", "expected"), WHOLE.values(), ids=WHOLE)
def test_an_answer(post, path, body, script, expected):
    status, _, text = post(path, script, config=LORAX, template=template_of(body), **body)
    assert (status, still(text)) == (200, expected)


@pytest.mark.parametrize(("path", "body", "script", "expected"), STREAMS.values(), ids=STREAMS)
def test_a_stream(post, path, body, script, expected):
    status, headers, text = post(path, script, config=LORAX, stream=True, **body)
    assert (status, headers["Content-Type"], text) == (200, "text/event-stream", expected)


def test_a_stream_tells_calls_as_the_text_that_they_are(post):
    text = post("/v1/chat/completions", CALLED, config=LORAX, template=TOOLED, stream=True, tools=PAINT, **CHAT)[2]
    assert json.loads(text.split("\n\n")[0].removeprefix("data:"))["choices"][0]["delta"]["content"] == CALL


def test_a_chat_is_sampled_and_a_text_only_if_something_asks_for_it(serve):
    cold, warm, *_ = asked(serve, "/v1/chat/completions", {"temperature": 0, "top_k": 2}, {}, {"n": 2})
    assert (cold.sampling.temperature, warm.sampling.temperature) == (0, 1)
    plain, asked_for = asked(serve, "/v1/completions", {}, {"n": 3})
    assert (plain.sampling.temperature, asked_for.sampling.temperature) == (0, 1)


@pytest.mark.parametrize("path", PATHS)
def test_what_both_take(serve, path):
    [request] = asked(serve, path, {"max_tokens": 7, "top_k": 2, "repetition_penalty": 2, "presence_penalty": 1,
                                    "frequency_penalty": 0.5, "stop": ["."], "seed": 1, "ignore_eos_token": True})
    sampling = request.sampling
    assert (request.max_new_tokens, request.stop_strings, request.end_tokens) == (7, (".",), frozenset())
    assert (sampling.top_k, sampling.repetition_penalty) == (2, 2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, 0.5)


@pytest.mark.parametrize(("path", "field"), [("/v1/chat/completions", "n"), ("/v1/completions", "best_of")])
def test_of_several_texts_the_best_is_the_answer(serve, path, field):
    requests = asked(serve, path, {field: 2, "temperature": 0.5})
    assert [request.id.endswith("-2") for request in requests] == [False, True]


@pytest.mark.parametrize(("given", "constrained"), [
    ({"type": "text", "schema": {"type": "object"}}, False), ({"type": "json_object"}, True),
    ({"type": "json_object", "schema": {"type": "object"}}, True), ({"type": "json_schema"}, True),
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}, True)], ids=str)
def test_a_format_is_read_as_openai_writes_it(serve, monkeypatch, given, constrained):
    async def compiled(_, grammar):
        return grammar.source
    monkeypatch.setattr("router.grammars.compiler_client.GrammarCompiler.compile", compiled)
    [request] = asked(serve, "/v1/chat/completions", {"response_format": given}, grammars=True)
    assert (request.grammar is not None) == constrained


def test_tools_and_a_format_are_not_taken_together(post):
    told = post("/v1/chat/completions", config=LORAX, tools=PAINT, response_format={"type": "json_object"}, **CHAT)
    assert told[::2] == (422, '{"error":"Tool error: Response format and tools are mutually exclusive",'
                              '"error_type":"tool_error"}')


def test_a_model_without_a_template_says_so(post):
    status, _, text = post("/v1/chat/completions", config=LORAX, template=None, **CHAT)
    assert (status, json.loads(text)["error_type"]) == (422, "template_error")
    assert json.loads(text)["error"].startswith("Failed applying chat template to inputs: ")


@pytest.mark.parametrize("path", PATHS)
def test_the_model_is_an_adapter_unless_it_is_the_base(post, path):
    for model, adapter in (("loom", None), ("", None), ("b", "b")):
        for stream in (False, True):
            _, headers, _ = post(path, config=LORAX, store=Store(), model=model, stream=stream, **PATHS[path])
            assert headers.get("x-adapter-id") == adapter
            assert (headers["x-compute-type"], headers["x-model-id"]) == ("gpu+optimized", "loom")


@pytest.mark.parametrize("path", PATHS)
def test_an_adapter_that_is_not_there_fails_as_on_the_other_routes(post, path):
    status, _, text = post(path, config=LORAX, store=Store(), model="c", **PATHS[path])
    assert (status, json.loads(text)["error_type"]) == (424, "generation")
