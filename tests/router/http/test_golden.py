"""Byte-exact answers and errors: field names and order as clients of text-generation-inference expect them."""

import re

import pytest
from support.servers.expected_streams import make_finished_timeline, make_text_events

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, TokenEvent, TopToken
from router.errors import GenerationFailed, NotReady, Overloaded
from router.request import FinishReason
from router.text.chat_template import ChatTemplate, simulated_model_template

MESSAGES = [{"role": "user", "content": "hi"}]
VARYING_FIELDS = re.compile(r'"id":"[a-z]+-[0-9a-f]+"|"created":\d+|"system_fingerprint":"[^"]*"|"id":"call_[0-9a-f]+"|'
                            r'"seed":\d+')
TOKEN_A, TOKEN_B = ('{"id":97,"text":"a","logprob":-0.5,"special":false}',
                    '{"id":98,"text":"b","logprob":-0.5,"special":false}')
LENGTH_DETAILS = '"finish_reason":"length","generated_tokens":2,"seed":null'
TOP_TOKENS_SCRIPT = [TokenEvent(97, "a", -0.5, False,
                                (TopToken(97, "a", -0.5, False), TopToken(256, "<|end|>", -2.0, True))),
                     FinishedEvent(FinishReason.END_TOKEN, "a", 1, make_finished_timeline())]
TOP_TOKENS = f'[{TOKEN_A},{{"id":256,"text":"<|end|>","logprob":-2,"special":true}}]'
CHAT_FIELDS = '"object":"chat.completion","id":"-","created":0,"model":"loom","system_fingerprint":"-"'
CHUNK_FIELDS = CHAT_FIELDS.replace("completion", "completion.chunk", 1)
TEXT_FIELDS = CHAT_FIELDS.replace("chat.completion", "text_completion")
USAGE = '{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22}'
PROMPT_LOGPROBS_SCRIPT = [PromptLogprobsEvent(1, (-1.5,)), *make_text_events("ab")]
END_TOKEN_EVENT = TokenEvent(256, "<|end|>", -0.25, True)
END_TOKEN = '{"id":256,"text":"<|end|>","logprob":-0.25,"special":true}'
HALF_TOKEN = '{"id":98,"text":"","logprob":-0.5,"special":false}'  # first half of a character: no text yet
END_TOKEN_SCRIPT = [TokenEvent(97, "a", -0.5, False), TokenEvent(98, "", -0.5, False), END_TOKEN_EVENT,
                    FinishedEvent(FinishReason.END_TOKEN, "a", 3, make_finished_timeline())]
STOP_STRING_SCRIPT = make_text_events("ab", FinishReason.STOP_STRING)
TWO_SCRIPTS = (make_text_events("ab"), [TokenEvent(97, "a", -0.25, False),
                                        FinishedEvent(FinishReason.LENGTH, "a", 1, make_finished_timeline())])
TOOL_CALL_TEXT = '<tool_call>{"name": "paint", "arguments": {"colour": "red"}}</tool_call>'
TOOL_CALL_SCRIPT = [TokenEvent(97, TOOL_CALL_TEXT, -0.5, False), END_TOKEN_EVENT,
                    FinishedEvent(FinishReason.END_TOKEN, TOOL_CALL_TEXT, 2, make_finished_timeline())]
TOOL_TEMPLATE = ChatTemplate("{{ tools | tojson }}{{ messages[0].content }}<tool_call>", {})
PAINT_TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}]
CALL_ARGUMENTS_JSON = '"arguments":"{\\"colour\\": \\"red\\"}"'
TOOL_CALL_OPENING_JSON = '"id":"-","type":"function","function":{"description":null,"name":"paint","arguments":""}'
TOOL_CALL_JSON = TOOL_CALL_OPENING_JSON.replace('"arguments":""', CALL_ARGUMENTS_JSON)
LOGPROBS_FORMAT = '{{"content":[{{"token":"{0}","logprob":-0.5,"bytes":[{1}],"top_logprobs":[]}}]}}'
BOTH_LOGPROBS = LOGPROBS_FORMAT.format("a", 97)[:-2] + "," + LOGPROBS_FORMAT.format("b", 98)[len('{"content":['):]
FAILURE_SCRIPT = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]

RESPONSE_CASES = {
    "a text": ("/generate", {"inputs": "hi"}, make_text_events("ab"), '{"generated_text":"ab"}'),
    "details": ("/generate", {"inputs": "hi", "parameters": {"details": True}}, make_text_events("ab"),
                f'{{"generated_text":"ab","details":{{{LENGTH_DETAILS},"prefill":[],"tokens":[{TOKEN_A},'
                f'{TOKEN_B}]}}}}'),
    "details of the prompt": (
        "/generate", {"inputs": "hi", "parameters": {"decoder_input_details": True}}, PROMPT_LOGPROBS_SCRIPT,
        f'{{"generated_text":"ab","details":{{{LENGTH_DETAILS},"prefill":[{{"id":104,"text":"h","logprob":null}},'
        f'{{"id":105,"text":"i","logprob":-1.5}}],"tokens":[{TOKEN_A},{TOKEN_B}]}}}}'),
    "top tokens": (
        "/generate", {"inputs": "hi", "parameters": {"details": True, "top_n_tokens": 2}}, TOP_TOKENS_SCRIPT,
        '{"generated_text":"a","details":{"finish_reason":"eos_token","generated_tokens":1,"seed":null,"prefill":[],'
        f'"tokens":[{TOKEN_A}],"top_tokens":[{TOP_TOKENS}]}}}}'),
    "a stop string": (
        "/generate", {"inputs": "hi", "parameters": {"details": True, "stop": ["b"]}},
        make_text_events("ab", FinishReason.STOP_STRING),
        f'{{"generated_text":"ab","details":{{"finish_reason":"stop_sequence","generated_tokens":2,"seed":null,'
        f'"prefill":[],"tokens":[{TOKEN_A},{TOKEN_B}]}}}}'),
    "an end token": (
        "/generate", {"inputs": "hi", "parameters": {"details": True}}, END_TOKEN_SCRIPT,
        '{"generated_text":"a","details":{"finish_reason":"eos_token","generated_tokens":3,"seed":null,"prefill":[],'
        f'"tokens":[{TOKEN_A},{HALF_TOKEN},{END_TOKEN}]}}}}'),
    "the best of several": (
        "/generate", {"inputs": "hi", "parameters": {"details": True, "best_of": 2, "do_sample": True}}, TWO_SCRIPTS,
        '{"generated_text":"a","details":{"finish_reason":"length","generated_tokens":1,"seed":0,"prefill":[],'
        f'"tokens":[{TOKEN_A.replace("-0.5", "-0.25")}],"best_of_sequences":[{{"generated_text":"ab",'
        f'{LENGTH_DETAILS.replace("null", "0")},"prefill":[],"tokens":[{TOKEN_A},{TOKEN_B}]}}]}}}}'),
    "no details": ("/generate", {"inputs": "hi", "parameters": {"top_n_tokens": 2}}, TOP_TOKENS_SCRIPT,
                   '{"generated_text":"a"}'),
    "with its prompt": ("/generate", {"inputs": "hi", "parameters": {"return_full_text": True}}, make_text_events("ab"),
                        '{"generated_text":"hiab"}'),
    "the oldest route without the prompt": ("/", {"inputs": "hi", "parameters": {"return_full_text": False}},
                                            make_text_events("ab"), '[{"generated_text":"ab"}]'),
    "the oldest route with details": (
        "/", {"inputs": "hi", "parameters": {"details": True}}, make_text_events("ab"),
        f'[{{"generated_text":"hiab","details":{{{LENGTH_DETAILS},"prefill":[],"tokens":[{TOKEN_A},{TOKEN_B}]}}}}]'),
    "the oldest route": ("/", {"inputs": "hi"}, make_text_events("ab"), '[{"generated_text":"hiab"}]'),
    "tokens": ("/tokenize", {"inputs": "hi"}, [],
               '[{"id": 104, "text": "h", "start": 0, "stop": 1}, {"id": 105, "text": "i", "start": 1, "stop": 2}]'),
    "a chat": ("/v1/chat/completions", {"messages": MESSAGES}, make_text_events("ab"),
               f'{{{CHAT_FIELDS},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab","refusal":null}},'
               f'"logprobs":null,'
               f'"finish_reason":"length"}}],"usage":{USAGE}}}'),
    "tokens of a chat": (
        "/chat_tokenize", {"messages": [{"role": "u", "content": ""}]}, [],
        '{"tokenize_response": [{"id": 104, "text": "h", "start": 0, "stop": 1}], "templated_text": "h"}'),
    "a chat that was stopped": (
        "/v1/chat/completions", {"messages": MESSAGES, "stop": "b"}, STOP_STRING_SCRIPT,
        f'{{{CHAT_FIELDS},"choices":[{{"index":0,"message":{{"role":"assistant","content":"a","refusal":null}},"logprobs":null,'
        f'"finish_reason":"stop"}}],"usage":{USAGE}}}'),
    "a chat with logprobs": (
        "/v1/chat/completions", {"messages": MESSAGES, "logprobs": True}, make_text_events("ab"),
        f'{{{CHAT_FIELDS},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab","refusal":null}},'
        f'"logprobs":{BOTH_LOGPROBS},'
        f'"finish_reason":"length"}}],"usage":{USAGE}}}'),
    "a call": (
        "/v1/chat/completions", {"messages": MESSAGES, "tools": PAINT_TOOLS}, TOOL_CALL_SCRIPT,
        f'{{{CHAT_FIELDS},"choices":[{{"index":0,"message":{{"role":"assistant","content":null,'
        f'"tool_calls":[{{{TOOL_CALL_JSON}}}],"refusal":null}},'
        '"logprobs":null,"finish_reason":"tool_calls"}],'
        '"usage":{"prompt_tokens":100,"completion_tokens":2,"total_tokens":102}}'),
    "completions": (
        "/v1/completions", {"prompt": ["hi", "a"]}, TWO_SCRIPTS,
        f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}},'
        '{"index":1,"text":"a","logprobs":null,"finish_reason":"length"}],'
        '"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}'),
    "a completion that ended": (
        "/v1/completions", {"prompt": "hi"}, END_TOKEN_SCRIPT,
        f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":"stop"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}'),
    "SageMaker, a text": ("/invocations", {"inputs": "hi"}, make_text_events("ab"), '[{"generated_text":"hiab"}]'),
    "SageMaker, a chat": (
        "/invocations", {"messages": MESSAGES}, make_text_events("ab"),
        f'{{{CHAT_FIELDS},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab","refusal":null}},"logprobs":null,'
        f'"finish_reason":"length"}}],"usage":{USAGE}}}'),
    "SageMaker, a completion": (
        "/invocations", {"prompt": "hi"}, make_text_events("ab"),
        f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}'),
    "instances": ("/vertex", {"instances": [{"messages": MESSAGES}, {"messages": MESSAGES}]},
                  (make_text_events("ab"), make_text_events("ab")),
                  '{"predictions": ["ab", "ab"]}'),
    "a completion": ("/v1/completions", {"prompt": "hi"}, make_text_events("ab"),
                     f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
                     '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}'),
    "an instance": ("/vertex", {"instances": [{"inputs": "hi"}]}, make_text_events("ab"), '{"predictions": ["ab"]}'),
}
FAILURE_JSON = ('{"error":{"message":"Request failed during generation: broken","type":"server_error","param":null,'
                '"code":null}}')
TGI_FAILURE_JSON = ('{"error":{"message":"Request failed during generation: broken","type":"generation",'
                    '"http_status_code":424},"error_type":"generation"}')
STREAM_CASES = {
    "a text": (
        "/generate_stream", {"inputs": "hi", "parameters": {"details": True}}, make_text_events("ab"),
        f'data: {{"index":1,"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{TOKEN_B},"generated_text":"ab","details":{{{LENGTH_DETAILS},'
        f'"input_length":2}}}}\n\n'),
    "top tokens": (
        "/generate_stream", {"inputs": "hi", "parameters": {"top_n_tokens": 2}}, TOP_TOKENS_SCRIPT,
        f'data: {{"index":1,"token":{TOKEN_A},"top_tokens":{TOP_TOKENS},"generated_text":"a","details":null}}\n\n'),
    "an end token": (
        "/generate_stream", {"inputs": "hi", "parameters": {"details": True}}, END_TOKEN_SCRIPT,
        f'data: {{"index":1,"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{HALF_TOKEN},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":3,"token":{END_TOKEN},"generated_text":"a","details":{{"finish_reason":"eos_token",'
        '"generated_tokens":3,"seed":null,"input_length":2}}\n\n'),
    "a stop string": (
        "/generate_stream", {"inputs": "hi", "parameters": {"details": True, "stop": ["b"]}}, STOP_STRING_SCRIPT,
        f'data: {{"index":1,"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{TOKEN_B},"generated_text":"ab","details":{{"finish_reason":"stop_sequence",'
        '"generated_tokens":2,"seed":null,"input_length":2}}\n\n'),
    "the oldest route": (
        "/", {"inputs": "hi", "stream": True}, make_text_events("ab"),
        f'data: {{"index":1,"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        f'data: {{"index":2,"token":{TOKEN_B},"generated_text":"hiab","details":null}}\n\n'),
    "a failure on the oldest route": (
        "/", {"inputs": "hi", "stream": True}, FAILURE_SCRIPT,
        f'data: {{"index":1,"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        'data: {"error":"Request failed during generation: broken","error_type":"generation"}\n\n'),
    "what is wrong on the oldest route": (
        "/", {"inputs": "hi", "stream": True, "parameters": {"best_of": 2}}, [],
        'data: {"error":"Input validation error: `best_of` must be 1 on a stream, got 2","error_type":"validation"}'
        '\n\n'),
    "SageMaker": (
        "/invocations", {"inputs": "hi", "stream": True}, make_text_events("a"),
        f'data: {{"index":1,"token":{TOKEN_A},"generated_text":"hia","details":null}}\n\n'),
    "a failure": (
        "/generate_stream", {"inputs": "hi"}, FAILURE_SCRIPT,
        f'data: {{"index":1,"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        'data: {"error":"Request failed during generation: broken","error_type":"generation"}\n\n'),
    "what is wrong": (
        "/generate_stream", {"inputs": ""}, [],
        'data: {"error":"Input validation error: `inputs` must not be an empty string","error_type":"validation"}\n\n'),
    "a chat": (
        "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
        make_text_events("ab"),
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},"logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"content":"b"}},"logprobs":null,'
        f'"finish_reason":"length"}}],'
        '"usage":null}\n\n'
        f'data: {{{CHUNK_FIELDS},"choices":[],"usage":{USAGE}}}\n\ndata: [DONE]\n\n'),
    "a completion": (
        "/v1/completions", {"prompt": "hi", "stream": True}, make_text_events("ab"),
        f'data: {{{TEXT_FIELDS},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":null}}],'
        f'"usage":null}}\n\n'
        f'data: {{{TEXT_FIELDS},"choices":[{{"index":0,"text":"b","logprobs":null,"finish_reason":"length"}}],'
        '"usage":null}\n\ndata: [DONE]\n\n'),
    "a chat with logprobs that ended": (
        "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "logprobs": True},
        [*make_text_events("a")[:1], TokenEvent(98, "b", -0.5, True),
         FinishedEvent(FinishReason.END_TOKEN, "a", 2, make_finished_timeline())],
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},'
        f'"logprobs":{LOGPROBS_FORMAT.format("a", 97)},"finish_reason":null}}],"usage":null}}\n\n'
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"content":""}},'
        f'"logprobs":{LOGPROBS_FORMAT.format("b", 98)},"finish_reason":"stop"}}],"usage":null}}\n\ndata: [DONE]\n\n'),
    "a call": (
        "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "tools": PAINT_TOOLS}, TOOL_CALL_SCRIPT,
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant",'
        f'"tool_calls":[{{"index":0,{TOOL_CALL_OPENING_JSON}}}]}},"logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":0,'
        f'"function":{{{CALL_ARGUMENTS_JSON}}}}}]}},"logprobs":null,"finish_reason":null}}],"usage":null}}\n\n'
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"tool_calls"}}],'
        '"usage":null}\n\ndata: [DONE]\n\n'),
    "a completion with usage": (
        "/v1/completions", {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}},
        STOP_STRING_SCRIPT[1:],
        f'data: {{{TEXT_FIELDS},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"stop"}}],'
        '"usage":null}\n\n'
        f'data: {{{TEXT_FIELDS},"choices":[],"usage":{{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}}}\n\n'
        'data: [DONE]\n\n'),
    "a failure of a completion": (
        "/v1/completions", {"prompt": "hi", "stream": True}, FAILURE_SCRIPT[1:],
        f"data: {FAILURE_JSON}\n\ndata: [DONE]\n\n"),
    "a failure of a chat": (
        "/v1/chat/completions", {"messages": MESSAGES, "stream": True}, FAILURE_SCRIPT[1:],
        f"data: {FAILURE_JSON}\n\ndata: [DONE]\n\n"),
    "a failure of SageMaker": (
        "/invocations", {"messages": MESSAGES, "stream": True}, FAILURE_SCRIPT[1:],
        f"data: {TGI_FAILURE_JSON}\n\ndata: [DONE]\n\n"),
}
# Deviations of text-generation-inference from OpenAI's API, kept with --compat tgi.
TGI_QUIRK_CASES = {
    "a call": (
        "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "tools": PAINT_TOOLS}, TOOL_CALL_SCRIPT,
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant",'
        f'"tool_calls":[{{"index":0,{TOOL_CALL_JSON}}}]}},"logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop"}}],'
        '"usage":null}\n\ndata: [DONE]\n\n'),
    "a chat": (
        "/v1/chat/completions", {"messages": MESSAGES}, STOP_STRING_SCRIPT,
        f'{{{CHAT_FIELDS},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ab"}},"logprobs":null,'
        f'"finish_reason":"stop_sequence"}}],"usage":{USAGE}}}'),
    "a chat in a stream": (
        "/v1/chat/completions", {"messages": MESSAGES, "stream": True}, STOP_STRING_SCRIPT,
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},"logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"b"}},"logprobs":null,'
        '"finish_reason":"stop_sequence"}],"usage":null}\n\ndata: [DONE]\n\n'),
    "a completion in a stream": (
        "/v1/completions", {"prompt": "hi", "stream": True}, make_text_events("ab", FinishReason.END_TOKEN),
        f'data: '
        f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":""}}],"usage":null}}\n\n'
        f'data: {{{TEXT_FIELDS},"choices":[{{"index":0,"text":"b","logprobs":null,"finish_reason":"eos_token"}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}\n\ndata: [DONE]\n\n'),
    "a failure of a completion": (
        "/v1/completions", {"prompt": "hi", "stream": True}, FAILURE_SCRIPT[1:],
        f"data: {TGI_FAILURE_JSON}\n\ndata: [DONE]\n\n"),
    "a failure of a chat": (
        "/v1/chat/completions", {"messages": MESSAGES, "stream": True}, FAILURE_SCRIPT[1:],
        f"data: {TGI_FAILURE_JSON}\n\ndata: [DONE]\n\n"),
}
REJECTION_CASES = {
    "overloaded": (Overloaded("full"), 429, '{"error":"Model is overloaded: full","error_type":"overloaded"}'),
    "not ready": (NotReady("lost"), 503, '{"error":"Model is not ready: lost","error_type":"overloaded"}'),
    "generation": (GenerationFailed("x"), 424,
                   '{"error":"Request failed during generation: x","error_type":"generation"}'),
}


def mask_varying_fields(text: str) -> str:
    """Replace the values that differ between answers: ids, times, fingerprints and seeds."""
    return VARYING_FIELDS.sub(lambda match: match[0].partition(":")[0] + (":0" if match[0][-1] != '"' else ':"-"'),
                              text)


def as_script_tuple(script):
    """Return the scripts as a tuple, one for each generated text."""
    return script if isinstance(script, tuple) else (script,)


def choose_template(path, body):
    if path == "/chat_tokenize":
        return ChatTemplate("h", {})
    return TOOL_TEMPLATE if "tools" in body else simulated_model_template()


@pytest.mark.parametrize(("path", "body", "script", "expected"), RESPONSE_CASES.values(), ids=RESPONSE_CASES)
def test_response_matches_tgi_byte_for_byte(post, path, body, script, expected):
    if path == "/generate" and "parameters" not in body:
        body = {**body, "parameters": {}}
    status, _, text = post(path, *as_script_tuple(script), template=choose_template(path, body), **body)
    assert (status, mask_varying_fields(text)) == (200, expected)


@pytest.mark.parametrize(("path", "body", "script", "expected"), STREAM_CASES.values(), ids=STREAM_CASES)
def test_stream_matches_tgi_byte_for_byte(post, path, body, script, expected):
    status, headers, text = post(path, script, template=choose_template(path, body), **{"parameters": {}} | body)
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "text/event-stream", "no-cache")
    assert mask_varying_fields(text) == expected


@pytest.mark.parametrize(("path", "body", "script", "expected"), TGI_QUIRK_CASES.values(), ids=TGI_QUIRK_CASES)
def test_tgi_quirk_matches_byte_for_byte(post, path, body, script, expected):
    text = post(path, script, config=RouterConfig(compat="tgi"), template=choose_template(path, body), **body)[2]
    assert mask_varying_fields(text) == expected


OPENAI_BODIES = {"/v1/chat/completions": {"messages": MESSAGES}, "/v1/completions": {"prompt": "hi"}}
BODY_BY_PATH = OPENAI_BODIES | {"/generate": {"inputs": "hi"}, "/vertex": {"instances": [{"inputs": "hi"}]},
                                "/": {"inputs": "hi"}}


@pytest.mark.parametrize("path", BODY_BY_PATH)
@pytest.mark.parametrize(("error", "status", "expected"), REJECTION_CASES.values(), ids=REJECTION_CASES)
def test_rejection_matches_tgi_byte_for_byte(serve, path, error, status, expected):
    async def scenario(client, engine):
        engine.submit_errors = [error]
        answer = await client.post(path, json=BODY_BY_PATH[path])
        assert (answer.status, await answer.text()) == (status, expected)
    for compat in ("tgi",) if path in OPENAI_BODIES else ("none", "tgi"):
        serve(scenario, config=RouterConfig(compat=compat))


def test_sse_events_have_a_space_after_the_colon_and_end_with_an_empty_line(post):
    _, _, text = post("/generate_stream", inputs="hi")
    assert all(line.startswith("data: {") for line in text.removesuffix("\n\n").split("\n\n"))
