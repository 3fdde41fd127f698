"""Answers and errors to the last byte: the names and the order that clients of text-generation-inference know."""

import re

import pytest
from hearing import lived, said

from router.errors import GenerationFailed, NotReady, Overloaded
from router.request import FinishReason
from router.stream import FailedEvent, FinishedEvent, PromptEvent, TokenEvent, TopToken

HELLO = [{"role": "user", "content": "hi"}]
CHANGING = re.compile(r'"id":"[a-z]+-[0-9a-f]+"|"created":\d+|"system_fingerprint":"[^"]*"|"id":"call_[0-9a-f]+"')
A, B = ('{"id":97,"text":"a","logprob":-0.5,"special":false}', '{"id":98,"text":"b","logprob":-0.5,"special":false}')
AT_LENGTH = '"finish_reason":"length","generated_tokens":2,"seed":null'
TOP = [TokenEvent(97, "a", -0.5, False, (TopToken(97, "a", -0.5, False), TopToken(256, "<|end|>", -2.0, True))),
       FinishedEvent(FinishReason.END_TOKEN, "a", 1, lived())]
TOPS = f'[{A},{{"id":256,"text":"<|end|>","logprob":-2,"special":true}}]'
OUT = '"object":"chat.completion","id":"-","created":0,"model":"loom","system_fingerprint":"-"'
CHUNK = OUT.replace("completion", "completion.chunk", 1)
TEXT = OUT.replace("chat.completion", "text_completion")
USAGE = '{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22}'
PROMPT = [PromptEvent(1, (-1.5,)), *said("ab")]
BROKEN = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]

WHOLE = {
    "a text": ("/generate", {"inputs": "hi"}, said("ab"), '{"generated_text":"ab"}'),
    "details": ("/generate", {"inputs": "hi", "parameters": {"details": True}}, said("ab"),
                f'{{"generated_text":"ab","details":{{{AT_LENGTH},"prefill":[],"tokens":[{A},{B}]}}}}'),
    "details of the prompt": (
        "/generate", {"inputs": "hi", "parameters": {"decoder_input_details": True}}, PROMPT,
        f'{{"generated_text":"ab","details":{{{AT_LENGTH},"prefill":[{{"id":104,"text":"h","logprob":null}},'
        f'{{"id":105,"text":"i","logprob":-1.5}}],"tokens":[{A},{B}]}}}}'),
    "top tokens": (
        "/generate", {"inputs": "hi", "parameters": {"details": True, "top_n_tokens": 2}}, TOP,
        '{"generated_text":"a","details":{"finish_reason":"eos_token","generated_tokens":1,"seed":null,"prefill":[],'
        f'"tokens":[{A}],"top_tokens":[{TOPS}]}}}}'),
    "a stop string": (
        "/generate", {"inputs": "hi", "parameters": {"details": True, "stop": ["b"]}},
        said("ab", FinishReason.STOP_STRING),
        f'{{"generated_text":"ab","details":{{"finish_reason":"stop_sequence","generated_tokens":2,"seed":null,'
        f'"prefill":[],"tokens":[{A},{B}]}}}}'),
    "the oldest route": ("/", {"inputs": "hi"}, said("ab"), '[{"generated_text":"hiab"}]'),
    "tokens": ("/tokenize", {"inputs": "hi"}, [],
               '[{"id": 104, "text": "h", "start": 0, "stop": 1}, {"id": 105, "text": "i", "start": 1, "stop": 2}]'),
    "a chat": ("/v1/chat/completions", {"messages": HELLO}, said("ab"),
               f'{{{OUT},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab"}},"logprobs":null,'
               f'"finish_reason":"length"}}],"usage":{USAGE}}}'),
    "a completion": ("/v1/completions", {"prompt": "hi"}, said("ab"),
                     f'{{{TEXT},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
                     '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}'),
    "an instance": ("/vertex", {"instances": [{"inputs": "hi"}]}, said("ab"), '{"predictions": ["ab"]}'),
}
STREAMS = {
    "a text": (
        "/generate_stream", {"inputs": "hi", "parameters": {"details": True}}, said("ab"),
        f'data: {{"index":1,"token":{A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{B},"generated_text":"ab","details":{{{AT_LENGTH},"input_length":2}}}}\n\n'),
    "top tokens": (
        "/generate_stream", {"inputs": "hi", "parameters": {"top_n_tokens": 2}}, TOP,
        f'data: {{"index":1,"token":{A},"top_tokens":{TOPS},"generated_text":"a","details":null}}\n\n'),
    "a failure": (
        "/generate_stream", {"inputs": "hi"}, BROKEN,
        f'data: {{"index":1,"token":{A},"generated_text":null,"details":null}}\n\n'
        'data: {"error":"Request failed during generation: broken","error_type":"generation"}\n\n'),
    "what is wrong": (
        "/generate_stream", {"inputs": ""}, [],
        'data: {"error":"Input validation error: `inputs` must not be an empty string","error_type":"validation"}\n\n'),
    "a chat": (
        "/v1/chat/completions", {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}},
        said("ab"),
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},"logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{"content":"b"}},"logprobs":null,"finish_reason":"length"}}],'
        '"usage":null}\n\n'
        f'data: {{{CHUNK},"choices":[],"usage":{USAGE}}}\n\ndata: [DONE]\n\n'),
    "a completion": (
        "/v1/completions", {"prompt": "hi", "stream": True}, said("ab"),
        f'data: {{{TEXT},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":null}}],"usage":null}}\n\n'
        f'data: {{{TEXT},"choices":[{{"index":0,"text":"b","logprobs":null,"finish_reason":"length"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}\n\ndata: [DONE]\n\n'),
    "a failure of a chat": (
        "/v1/chat/completions", {"messages": HELLO, "stream": True}, BROKEN[1:],
        'data: {"error":{"message":"Request failed during generation: broken","type":"generation",'
        '"http_status_code":424},"error_type":"generation"}\n\ndata: [DONE]\n\n'),
}
REFUSALS = {
    "overloaded": (Overloaded("full"), 429, '{"error":"Model is overloaded: full","error_type":"overloaded"}'),
    "not ready": (NotReady("lost"), 503, '{"error":"Model is not ready: lost","error_type":"overloaded"}'),
    "generation": (GenerationFailed("x"), 424,
                   '{"error":"Request failed during generation: x","error_type":"generation"}'),
}


def still(text: str) -> str:
    """Without what differs from one answer to the next."""
    return CHANGING.sub(lambda found: found[0].partition(":")[0] + (":0" if "created" in found[0] else ':"-"'), text)


@pytest.mark.parametrize(("path", "body", "script", "expected"), WHOLE.values(), ids=WHOLE)
def test_an_answer(post, path, body, script, expected):
    if path == "/generate" and "parameters" not in body:
        body = {**body, "parameters": {}}
    status, _, text = post(path, script, **body)
    assert (status, still(text)) == (200, expected)


@pytest.mark.parametrize(("path", "body", "script", "expected"), STREAMS.values(), ids=STREAMS)
def test_a_stream(post, path, body, script, expected):
    status, headers, text = post(path, script, **{"parameters": {}} | body)
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "text/event-stream", "no-cache")
    assert still(text) == expected


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions", "/vertex", "/"])
@pytest.mark.parametrize(("error", "status", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal(serve, path, error, status, expected):
    bodies = {"/v1/chat/completions": {"messages": HELLO}, "/v1/completions": {"prompt": "hi"},
              "/vertex": {"instances": [{"inputs": "hi"}]}}

    async def scenario(client, engine):
        engine.refusals = [error]
        answer = await client.post(path, json=bodies.get(path, {"inputs": "hi"}))
        assert (answer.status, await answer.text()) == (status, expected)
    serve(scenario)


def test_an_event_has_a_blank_behind_its_colon_and_ends_with_an_empty_line(post):
    _, _, text = post("/generate_stream", inputs="hi")
    assert all(line.startswith("data: {") for line in text.removesuffix("\n\n").split("\n\n"))
