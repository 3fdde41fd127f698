"""Byte-exact answers and errors: field names and order as clients of text-generation-inference expect them."""

import re

import pytest
from support.expected_streams import lived, said

from router.config import RouterConfig
from router.engine.stream import FailedEvent, FinishedEvent, PromptEvent, TokenEvent, TopToken
from router.errors import GenerationFailed, NotReady, Overloaded
from router.request import FinishReason
from router.text.chat_template import ChatTemplate, plain_template

HELLO = [{"role": "user", "content": "hi"}]
CHANGING = re.compile(r'"id":"[a-z]+-[0-9a-f]+"|"created":\d+|"system_fingerprint":"[^"]*"|"id":"call_[0-9a-f]+"|'
                      r'"seed":\d+')
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
END = TokenEvent(256, "<|end|>", -0.25, True)
E = '{"id":256,"text":"<|end|>","logprob":-0.25,"special":true}'
HALF = '{"id":98,"text":"","logprob":-0.5,"special":false}'  # first half of a character: no text yet
ENDED = [TokenEvent(97, "a", -0.5, False), TokenEvent(98, "", -0.5, False), END,
         FinishedEvent(FinishReason.END_TOKEN, "a", 3, lived())]
STOPPED = said("ab", FinishReason.STOP_STRING)
SEVERAL = (said("ab"), [TokenEvent(97, "a", -0.25, False), FinishedEvent(FinishReason.LENGTH, "a", 1, lived())])
CALL = '<tool_call>{"name": "paint", "arguments": {"colour": "red"}}</tool_call>'
CALLED = [TokenEvent(97, CALL, -0.5, False), END, FinishedEvent(FinishReason.END_TOKEN, CALL, 2, lived())]
TOOLED = ChatTemplate("{{ tools | tojson }}{{ messages[0].content }}<tool_call>", {})
PAINT = [{"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}]
TOLD_CALL = ('"id":"-","type":"function","function":{"description":null,"name":"paint",'
             '"arguments":"{\\"colour\\": \\"red\\"}"}')
LOGPROBS = '{{"content":[{{"token":"{0}","logprob":-0.5,"bytes":[{1}],"top_logprobs":[]}}]}}'
BOTH = LOGPROBS.format("a", 97)[:-2] + "," + LOGPROBS.format("b", 98)[len('{"content":['):]
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
    "an end token": (
        "/generate", {"inputs": "hi", "parameters": {"details": True}}, ENDED,
        '{"generated_text":"a","details":{"finish_reason":"eos_token","generated_tokens":3,"seed":null,"prefill":[],'
        f'"tokens":[{A},{HALF},{E}]}}}}'),
    "the best of several": (
        "/generate", {"inputs": "hi", "parameters": {"details": True, "best_of": 2, "do_sample": True}}, SEVERAL,
        '{"generated_text":"a","details":{"finish_reason":"length","generated_tokens":1,"seed":0,"prefill":[],'
        f'"tokens":[{A.replace("-0.5", "-0.25")}],"best_of_sequences":[{{"generated_text":"ab",'
        f'{AT_LENGTH.replace("null", "0")},"prefill":[],"tokens":[{A},{B}]}}]}}}}'),
    "no details": ("/generate", {"inputs": "hi", "parameters": {"top_n_tokens": 2}}, TOP, '{"generated_text":"a"}'),
    "with its prompt": ("/generate", {"inputs": "hi", "parameters": {"return_full_text": True}}, said("ab"),
                        '{"generated_text":"hiab"}'),
    "the oldest route without the prompt": ("/", {"inputs": "hi", "parameters": {"return_full_text": False}},
                                            said("ab"), '[{"generated_text":"ab"}]'),
    "the oldest route with details": (
        "/", {"inputs": "hi", "parameters": {"details": True}}, said("ab"),
        f'[{{"generated_text":"hiab","details":{{{AT_LENGTH},"prefill":[],"tokens":[{A},{B}]}}}}]'),
    "the oldest route": ("/", {"inputs": "hi"}, said("ab"), '[{"generated_text":"hiab"}]'),
    "tokens": ("/tokenize", {"inputs": "hi"}, [],
               '[{"id": 104, "text": "h", "start": 0, "stop": 1}, {"id": 105, "text": "i", "start": 1, "stop": 2}]'),
    "a chat": ("/v1/chat/completions", {"messages": HELLO}, said("ab"),
               f'{{{OUT},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab"}},"logprobs":null,'
               f'"finish_reason":"length"}}],"usage":{USAGE}}}'),
    "tokens of a chat": (
        "/chat_tokenize", {"messages": [{"role": "u", "content": ""}]}, [],
        '{"tokenize_response": [{"id": 104, "text": "h", "start": 0, "stop": 1}], "templated_text": "h"}'),
    "a chat that was stopped": (
        "/v1/chat/completions", {"messages": HELLO, "stop": "b"}, STOPPED,
        f'{{{OUT},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab"}},"logprobs":null,'
        f'"finish_reason":"stop"}}],"usage":{USAGE}}}'),
    "a chat with logprobs": (
        "/v1/chat/completions", {"messages": HELLO, "logprobs": True}, said("ab"),
        f'{{{OUT},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab"}},"logprobs":{BOTH},'
        f'"finish_reason":"length"}}],"usage":{USAGE}}}'),
    "a call": (
        "/v1/chat/completions", {"messages": HELLO, "tools": PAINT}, CALLED,
        f'{{{OUT},"choices":[{{"index":0,"message":{{"role":"assistant","tool_calls":[{{{TOLD_CALL}}}]}},'
        '"logprobs":null,"finish_reason":"tool_calls"}],'
        '"usage":{"prompt_tokens":100,"completion_tokens":2,"total_tokens":102}}'),
    "completions": (
        "/v1/completions", {"prompt": ["hi", "a"]}, SEVERAL,
        f'{{{TEXT},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}},'
        '{"index":1,"text":"a","logprobs":null,"finish_reason":"length"}],'
        '"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}'),
    "a completion that ended": (
        "/v1/completions", {"prompt": "hi"}, ENDED,
        f'{{{TEXT},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":"stop"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}'),
    "SageMaker, a text": ("/invocations", {"inputs": "hi"}, said("ab"), '[{"generated_text":"hiab"}]'),
    "SageMaker, a chat": (
        "/invocations", {"messages": HELLO}, said("ab"),
        f'{{{OUT},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab"}},"logprobs":null,'
        f'"finish_reason":"length"}}],"usage":{USAGE}}}'),
    "SageMaker, a completion": (
        "/invocations", {"prompt": "hi"}, said("ab"),
        f'{{{TEXT},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}'),
    "instances": ("/vertex", {"instances": [{"messages": HELLO}, {"messages": HELLO}]}, (said("ab"), said("ab")),
                  '{"predictions": ["ab", "ab"]}'),
    "a completion": ("/v1/completions", {"prompt": "hi"}, said("ab"),
                     f'{{{TEXT},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
                     '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}'),
    "an instance": ("/vertex", {"instances": [{"inputs": "hi"}]}, said("ab"), '{"predictions": ["ab"]}'),
}
FAILURE = ('{"error":{"message":"Request failed during generation: broken","type":"server_error","param":null,'
           '"code":null}}')
TGI_FAILURE = ('{"error":{"message":"Request failed during generation: broken","type":"generation",'
               '"http_status_code":424},"error_type":"generation"}')
STREAMS = {
    "a text": (
        "/generate_stream", {"inputs": "hi", "parameters": {"details": True}}, said("ab"),
        f'data: {{"index":1,"token":{A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{B},"generated_text":"ab","details":{{{AT_LENGTH},"input_length":2}}}}\n\n'),
    "top tokens": (
        "/generate_stream", {"inputs": "hi", "parameters": {"top_n_tokens": 2}}, TOP,
        f'data: {{"index":1,"token":{A},"top_tokens":{TOPS},"generated_text":"a","details":null}}\n\n'),
    "an end token": (
        "/generate_stream", {"inputs": "hi", "parameters": {"details": True}}, ENDED,
        f'data: {{"index":1,"token":{A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{HALF},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":3,"token":{E},"generated_text":"a","details":{{"finish_reason":"eos_token",'
        '"generated_tokens":3,"seed":null,"input_length":2}}\n\n'),
    "a stop string": (
        "/generate_stream", {"inputs": "hi", "parameters": {"details": True, "stop": ["b"]}}, STOPPED,
        f'data: {{"index":1,"token":{A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{B},"generated_text":"ab","details":{{"finish_reason":"stop_sequence",'
        '"generated_tokens":2,"seed":null,"input_length":2}}\n\n'),
    "the oldest route": (
        "/", {"inputs": "hi", "stream": True}, said("ab"),
        f'data: {{"index":1,"token":{A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{B},"generated_text":"hiab","details":null}}\n\n'),
    "a failure on the oldest route": (
        "/", {"inputs": "hi", "stream": True}, BROKEN,
        f'data: {{"index":1,"token":{A},"generated_text":null,"details":null}}\n\n'
        'data: {"error":"Request failed during generation: broken","error_type":"generation"}\n\n'),
    "what is wrong on the oldest route": (
        "/", {"inputs": "hi", "stream": True, "parameters": {"best_of": 2}}, [],
        'data: {"error":"Input validation error: `best_of` must be 1 on a stream, got 2","error_type":"validation"}'
        '\n\n'),
    "SageMaker": (
        "/invocations", {"inputs": "hi", "stream": True}, said("a"),
        f'data: {{"index":1,"token":{A},"generated_text":"hia","details":null}}\n\n'),
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
    "a chat with logprobs that ended": (
        "/v1/chat/completions", {"messages": HELLO, "stream": True, "logprobs": True},
        [*said("a")[:1], TokenEvent(98, "b", -0.5, True), FinishedEvent(FinishReason.END_TOKEN, "a", 2, lived())],
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},'
        f'"logprobs":{LOGPROBS.format("a", 97)},"finish_reason":null}}],"usage":null}}\n\n'
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{"content":""}},'
        f'"logprobs":{LOGPROBS.format("b", 98)},"finish_reason":"stop"}}],"usage":null}}\n\ndata: [DONE]\n\n'),
    "a call": (
        "/v1/chat/completions", {"messages": HELLO, "stream": True, "tools": PAINT}, CALLED,
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant",'
        f'"tool_calls":[{{"index":0,{TOLD_CALL}}}]}},"logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"tool_calls"}}],'
        '"usage":null}\n\ndata: [DONE]\n\n'),
    "a completion with usage": (
        "/v1/completions", {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}, STOPPED[1:],
        f'data: {{{TEXT},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"stop"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}\n\n'
        f'data: {{{TEXT},"choices":[],"usage":{{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}}}\n\n'
        'data: [DONE]\n\n'),
    "a failure of a completion": (
        "/v1/completions", {"prompt": "hi", "stream": True}, BROKEN[1:], f"data: {FAILURE}\n\ndata: [DONE]\n\n"),
    "a failure of a chat": (
        "/v1/chat/completions", {"messages": HELLO, "stream": True}, BROKEN[1:],
        f"data: {FAILURE}\n\ndata: [DONE]\n\n"),
    "a failure of SageMaker": (
        "/invocations", {"messages": HELLO, "stream": True}, BROKEN[1:], f"data: {TGI_FAILURE}\n\ndata: [DONE]\n\n"),
}
# Deviations of text-generation-inference from OpenAI's API, kept with --compat tgi.
ODD = {
    "a chat": (
        "/v1/chat/completions", {"messages": HELLO}, STOPPED,
        f'{{{OUT},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab"}},"logprobs":null,'
        f'"finish_reason":"stop_sequence"}}],"usage":{USAGE}}}'),
    "a chat in a stream": (
        "/v1/chat/completions", {"messages": HELLO, "stream": True}, STOPPED,
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},"logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{CHUNK},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"b"}},"logprobs":null,'
        '"finish_reason":"stop_sequence"}],"usage":null}\n\ndata: [DONE]\n\n'),
    "a completion in a stream": (
        "/v1/completions", {"prompt": "hi", "stream": True}, said("ab", FinishReason.END_TOKEN),
        f'data: {{{TEXT},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":""}}],"usage":null}}\n\n'
        f'data: {{{TEXT},"choices":[{{"index":0,"text":"b","logprobs":null,"finish_reason":"eos_token"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}\n\ndata: [DONE]\n\n'),
    "a failure of a completion": (
        "/v1/completions", {"prompt": "hi", "stream": True}, BROKEN[1:],
        f"data: {TGI_FAILURE}\n\ndata: [DONE]\n\n"),
    "a failure of a chat": (
        "/v1/chat/completions", {"messages": HELLO, "stream": True}, BROKEN[1:],
        f"data: {TGI_FAILURE}\n\ndata: [DONE]\n\n"),
}
REFUSALS = {
    "overloaded": (Overloaded("full"), 429, '{"error":"Model is overloaded: full","error_type":"overloaded"}'),
    "not ready": (NotReady("lost"), 503, '{"error":"Model is not ready: lost","error_type":"overloaded"}'),
    "generation": (GenerationFailed("x"), 424,
                   '{"error":"Request failed during generation: x","error_type":"generation"}'),
}


def still(text: str) -> str:
    """Replace the values that differ between answers: ids, times, fingerprints and seeds."""
    return CHANGING.sub(lambda found: found[0].partition(":")[0] + (":0" if found[0][-1] != '"' else ':"-"'), text)


def scripts_of(script):
    """Return the scripts as a tuple, one for each generated text."""
    return script if isinstance(script, tuple) else (script,)


def template_of(path, body):
    if path == "/chat_tokenize":
        return ChatTemplate("h", {})
    return TOOLED if "tools" in body else plain_template()


@pytest.mark.parametrize(("path", "body", "script", "expected"), WHOLE.values(), ids=WHOLE)
def test_an_answer(post, path, body, script, expected):
    if path == "/generate" and "parameters" not in body:
        body = {**body, "parameters": {}}
    status, _, text = post(path, *scripts_of(script), template=template_of(path, body), **body)
    assert (status, still(text)) == (200, expected)


@pytest.mark.parametrize(("path", "body", "script", "expected"), STREAMS.values(), ids=STREAMS)
def test_a_stream(post, path, body, script, expected):
    status, headers, text = post(path, script, template=template_of(path, body), **{"parameters": {}} | body)
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "text/event-stream", "no-cache")
    assert still(text) == expected


@pytest.mark.parametrize(("path", "body", "script", "expected"), ODD.values(), ids=ODD)
def test_an_oddity(post, path, body, script, expected):
    assert still(post(path, script, config=RouterConfig(compat="tgi"), **body)[2]) == expected


V1 = {"/v1/chat/completions": {"messages": HELLO}, "/v1/completions": {"prompt": "hi"}}
BODIES = V1 | {"/generate": {"inputs": "hi"}, "/vertex": {"instances": [{"inputs": "hi"}]}, "/": {"inputs": "hi"}}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("error", "status", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal(serve, path, error, status, expected):
    async def scenario(client, engine):
        engine.refusals = [error]
        answer = await client.post(path, json=BODIES[path])
        assert (answer.status, await answer.text()) == (status, expected)
    for compat in ("tgi",) if path in V1 else ("none", "tgi"):
        serve(scenario, config=RouterConfig(compat=compat))


def test_an_event_has_a_blank_behind_its_colon_and_ends_with_an_empty_line(post):
    _, _, text = post("/generate_stream", inputs="hi")
    assert all(line.startswith("data: {") for line in text.removesuffix("\n\n").split("\n\n"))
