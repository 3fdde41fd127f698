"""OpenAI's chat completions over a scripted engine."""

import asyncio
import json
import threading

import pytest
from aiohttp import ClientPayloadError
from support.servers.expected_streams import make_finished_timeline, make_text_events

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent, TopToken
from router.errors import Cancelled, GenerationFailed, NotReady, Overloaded, TimedOut
from router.http.openai.rendering import text_chat_choice_json
from router.http.openai.requests import OPENAI_ROLES
from router.http.transport.services import MAX_INLINE_TOKENS
from router.request import FinishReason
from router.text.chat_template import ChatTemplate, simulated_model_template

CHAT_PATH = "/v1/chat/completions"
CHAT_TEMPLATE = simulated_model_template()
MESSAGES = [{"role": "user", "content": "hi"}]
END_TOKEN_SCRIPT = [TokenEvent(97, "weft", -1.0, False),
                    FinishedEvent(FinishReason.END_TOKEN, "weft", 1, make_finished_timeline())]
RENDERED_PROMPT = tuple(b"user: hi\nassistant: ")


def post_chat(post, *scripts, messages=MESSAGES, **body_fields):
    status, _, text = post(CHAT_PATH, *scripts, messages=messages, **body_fields)
    assert status == 200, text
    return json.loads(text)


def stream_chat(post, *scripts, **body_fields):
    status, headers, text = post(CHAT_PATH, *scripts, messages=MESSAGES, stream=True, **body_fields)
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    *lines, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def post_and_get_requests(serve, *bodies, **serve_options):
    """Post the bodies and return the engine's requests."""
    async def scenario(client, engine):
        for body in bodies:
            answer = await client.post(CHAT_PATH, json={"messages": MESSAGES} | body)
            assert answer.status == 200, await answer.text()
        return engine.requests
    return serve(scenario, **serve_options)


# ---------------------------------------------------------------------------------------------------------------------
# Requests


def test_chat_template_renders_messages_into_the_prompt(serve):
    [request] = post_and_get_requests(serve, {"messages": [
        {"role": "system", "content": "be"}, *MESSAGES, {"role": "assistant", "content": ""},
        {"role": "tool", "content": "5", "tool_call_id": "a"}]})
    assert bytes(request.prompt) == b"system: be\nuser: hi\nassistant: \ntool: 5\nassistant: "


def test_text_parts_of_a_message_are_joined(serve):
    parts = [{"type": "text", "text": "war"}, {"type": "text", "text": "p"}]
    [request] = post_and_get_requests(serve, {"messages": [{"role": "user", "content": parts}]})
    assert bytes(request.prompt) == b"user: warp\nassistant: "


def test_template_receives_the_known_fields_of_messages(serve):
    template = ChatTemplate("{{ messages | tojson }}", {})
    message = {"role": "tool", "content": "5", "name": "add", "tool_call_id": "a"}
    [request] = post_and_get_requests(serve, {"messages": [message | {"weight": 3}]}, template=template)
    assert json.loads(bytes(request.prompt)) == [message]


@pytest.mark.parametrize("fields", [{"reasoning": "Hm"}, {"reasoning_content": "Hm"},
                                    {"reasoning": "Hm", "reasoning_content": "Hm"}])
def test_template_receives_the_reasoning_of_an_earlier_answer_by_any_name(serve, fields):
    template = ChatTemplate("{{ messages[1].reasoning_content }}{{ messages[1].thinking }}", {})
    messages = [*MESSAGES, {"role": "assistant", "content": "So.", **fields}, *MESSAGES]
    [request] = post_and_get_requests(serve, {"messages": messages}, template=template)
    assert bytes(request.prompt) == b"HmHm"


IPYTHON_TEMPLATE = ChatTemplate("""{% for message in messages %}
    {% if message['role'] == "ipython" or message.role not in ('context', 'user') %}{{ message.role }}{% endif %}
    {{ message['content'] }}{% endfor %}""", {})


@pytest.mark.parametrize(("role", "template", "known_roles"), [
    ("wizard", CHAT_TEMPLATE, ""), ("ipython", CHAT_TEMPLATE, ""), ("content", IPYTHON_TEMPLATE, ", context, ipython"),
    ("U" * 50, None, "")])
def test_unknown_role_is_refused_with_those_that_are_known(post, role, template, known_roles):
    messages = [*MESSAGES, {"role": role, "content": "x"}]
    for path in (CHAT_PATH, "/tokenize"):
        status, _, text = post(path, messages=messages, template=template)
        error = json.loads(text)["error"]
        message = (f"`messages.1.role` must be one of system, developer, user, assistant, tool, function{known_roles}, "
                   f"got '{role[:40]}'")
        assert (status, error["param"], error["message"]) == (400, "messages", message) if path == CHAT_PATH else (
            message in text), text


def test_roles_of_openai_and_of_the_template_are_known(serve):
    for role in (*OPENAI_ROLES, "ipython", "context"):
        post_and_get_requests(serve, {"messages": [{"role": role, "content": "x"}]}, template=IPYTHON_TEMPLATE)


@pytest.mark.parametrize("compat", ["tgi", "lorax"])
def test_any_role_is_taken_where_another_server_is_imitated(post, compat):
    assert post(CHAT_PATH, messages=[{"role": "wizard", "content": "x"}], config=RouterConfig(compat=compat))[0] == 200


@pytest.mark.parametrize("tool_choice", ["auto", "required", "response_format"])
@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "json_object"}}])
def test_tool_may_be_named_as_a_field(serve, tool_choice, fields):
    call = '{"name": "response_format", "arguments": {"a": 1}}'
    text = f"<tool_call>{call}</tool_call>" if tool_choice == "auto" else call

    async def scenario(client, _):
        answer = await client.post(CHAT_PATH, json=fields | {
            "messages": MESSAGES, "tool_choice": tool_choice,
            "tools": [{"type": "function", "function": {"name": "response_format"}}]})
        assert answer.status == 200, await answer.text()
        return (await answer.json())["choices"][0]
    choice = serve(scenario, make_text_events(text, FinishReason.END_TOKEN), grammars=True, template=TOOL_TEMPLATE)
    [called] = choice["message"]["tool_calls"]
    assert (called["function"]["name"], called["function"]["arguments"]) == ("response_format", '{"a": 1}')
    assert choice["finish_reason"] == "tool_calls"


def test_unknown_fields_of_messages_are_named(serve):
    async def scenario(client, _):
        messages = [{**MESSAGES[0], "weight": 3}, {"role": "assistant", "content": "So.", "refusal": None,
                                                   "annotations": [], "audio": {"id": "x"}}, *MESSAGES]
        answer = await client.post(CHAT_PATH, json={"messages": messages, "user": "me"})
        assert (answer.status, answer.headers["x-ignored-fields"]) == (200, "user, messages.0.weight, messages.1.audio")
    serve(scenario)


def test_refused_length_is_named_as_the_client_names_it(post):
    for name in ("max_tokens", "max_completion_tokens"):
        status, _, text = post(CHAT_PATH, messages=MESSAGES, **{name: 0})
        error = json.loads(text)["error"]
        assert (status, error["param"], error["message"]) == (400, name, f"`{name}` must be at least 1, got 0")


def test_defaults_sample_until_the_end_of_the_context(serve):
    [request] = post_and_get_requests(serve, {})
    assert (request.prompt, request.sampling.temperature) == (RENDERED_PROMPT, 1.0)
    assert request.max_new_tokens == 1600 - len(RENDERED_PROMPT)
    assert request.end_tokens == {256}


def test_zero_temperature_is_greedy_regardless_of_other_parameters(serve):
    for request in post_and_get_requests(serve, {"temperature": 0}, {"temperature": 0.0, "top_p": 0.9, "seed": 5}):
        assert (request.sampling.temperature, request.sampling_key) == (0, 0)


def test_parameters_reach_the_request(serve):
    [request] = post_and_get_requests(serve, {
        "temperature": 0.5, "top_p": 0.75, "frequency_penalty": 0.25, "presence_penalty": -0.25, "max_tokens": 9,
        "stop": [".", "!"], "priority": 3})
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.75)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.25, -0.25)
    assert (sampling.relative_frequency_penalty, sampling.repetition_penalty) == (0, 0)
    assert (request.max_new_tokens, request.stop_strings, request.priority) == (9, (".", "!"), 3)


def test_seed_gives_the_same_sampling_key_as_other_dialects(serve):
    async def scenario(client, engine):
        await client.post(CHAT_PATH, json={"messages": MESSAGES, "seed": 7})
        await client.post("/generate", json={"inputs": "x", "parameters": {"do_sample": True, "seed": 7}})
        first, second = engine.requests
        assert first.sampling_key == second.sampling_key
    serve(scenario)


def test_default_and_unknown_fields_have_no_effect(serve):
    bare, *others = post_and_get_requests(
        serve, {"seed": 1}, {"seed": 1, "top_p": 1}, {"seed": 1, "stop": None, "n": 1, "max_tokens": None, "tools": []},
        {"seed": 1, "stream": None, "stream_options": None, "logprobs": False, "response_format": None},
        {"seed": 1, "user": "u", "top_k": -1, "unheard": {"of": 1}, "logit_bias": {}, "min_p": 0, "min_tokens": 0,
         "stop_token_ids": [], "allowed_token_ids": None, "repetition_penalty": 1, "frequency_penalty": 0,
         "presence_penalty": 0})
    for other in others:
        assert (other.sampling, other.sampling_key, other.stop_strings) == (bare.sampling, bare.sampling_key, ())


def test_stop_accepts_a_single_string(serve):
    assert post_and_get_requests(serve, {"stop": "."})[0].stop_strings == (".",)


@pytest.mark.parametrize("fields", [
    {"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 5},
    {"max_completion_tokens": None, "max_tokens": 5}])
def test_max_tokens_and_max_completion_tokens_are_equivalent(serve, fields):
    assert post_and_get_requests(serve, fields)[0].max_new_tokens == 5


def test_cache_salt_isolates_the_prefix_cache(serve):
    first, second = post_and_get_requests(serve, {}, {"cache_salt": "s"})
    assert first.cache_namespace != second.cache_namespace


def test_sampling_fields_of_openai_and_vllm_reach_the_request(serve):
    [request] = post_and_get_requests(serve, {
        "top_k": 3, "min_p": 0.25, "repetition_penalty": 2, "logit_bias": {"9": 2.5, "7": -100}, "min_tokens": 4,
        "allowed_token_ids": [5, 3, 5], "stop_token_ids": [8]})
    sampling = request.sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (3, 0.25, 2)
    assert (sampling.biased_tokens, sampling.biases, sampling.allowed_tokens) == ((7, 9), (-100, 2.5), (3, 5))
    assert (sampling.min_tokens, request.end_tokens) == (4, {8, 256})


def test_logprobs_are_those_of_the_raw_logits(serve):
    requests = post_and_get_requests(serve, {}, {"logprobs": False}, {"logprobs": True}, {"top_logprobs": 20})
    assert [request.sampling.raw_logprobs for request in requests] == [False, False, True, True]
    [tgi] = post_and_get_requests(serve, {"logprobs": True}, config=RouterConfig(compat="tgi"))
    assert not tgi.sampling.raw_logprobs


@pytest.mark.parametrize(("config", "status"), [
    ({}, 200), ({"max_top_n_tokens": 6}, 400), ({"max_top_n_tokens": 30}, 200), ({"compat": "tgi"}, 422)])
def test_alternatives_are_20_unless_the_setting_says_otherwise(post, config, status):
    assert post(CHAT_PATH, messages=MESSAGES, top_logprobs=20, config=RouterConfig(**config))[0] == status


def test_ignore_eos_disables_end_tokens(serve):
    """vLLM's field `ignore_eos`, which its clients use to get answers of equal length."""
    usual, longer, null = post_and_get_requests(serve, {}, {"ignore_eos": True}, {"ignore_eos": None})
    assert usual.end_tokens == null.end_tokens != longer.end_tokens == set()


# ---------------------------------------------------------------------------------------------------------------------
# Answers


def test_response_is_a_chat_completion(post):
    completion = post_chat(post)
    assert (completion["object"], completion["model"]) == ("chat.completion", "loom")
    assert completion["choices"][0]["message"] == {"role": "assistant", "content": "weft", "refusal": None}
    assert completion["usage"] == {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24}
    assert completion["id"].startswith("chatcmpl-")
    assert completion["created"] > 1_700_000_000


def test_stream_contains_the_same_text(post):
    chunks = stream_chat(post)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "weft"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1


def test_stream_usage_is_sent_only_if_requested(post):
    assert stream_chat(post, stream_options={"include_usage": True})[-1]["usage"]["total_tokens"] == 24
    assert all(chunk["usage"] is None for chunk in stream_chat(post, stream_options={}))


# Texts of tokens outside the vocabulary of bytes, and a token that is half a character.
TOP_TOKENS = (TopToken(300, "we", -1.0, False), TopToken(301, "\u00e9", -2.5, False))
TOP_LOGPROBS_SCRIPT = [TokenEvent(300, "we", -1.0, False, TOP_TOKENS), TokenEvent(0xC3, "", -0.5, False),
                       TokenEvent(0xA9, "\u00e9", -0.5, False), TokenEvent(256, "<|end|>", -0.25, True),
                       FinishedEvent(FinishReason.END_TOKEN, "we\u00e9", 4, make_finished_timeline())]
LOGPROBS_JSON = [
    {"token": "we", "logprob": -1.0, "bytes": [119, 101], "top_logprobs": [
        {"token": "we", "logprob": -1.0, "bytes": [119, 101]},
        {"token": "\u00e9", "logprob": -2.5, "bytes": [195, 169]}]},
    {"token": "", "logprob": -0.5, "bytes": [195], "top_logprobs": []},
    {"token": "\u00e9", "logprob": -0.5, "bytes": [169], "top_logprobs": []},
    {"token": "<|end|>", "logprob": -0.25, "bytes": [*b"<|end|>"], "top_logprobs": []}]


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 2}])
def test_logprobs_are_returned_for_every_token(post, fields):
    [choice] = post_chat(post, TOP_LOGPROBS_SCRIPT, **fields)["choices"]
    assert choice["logprobs"] == {"content": LOGPROBS_JSON}
    chunks = stream_chat(post, TOP_LOGPROBS_SCRIPT, **fields)
    assert [entry for chunk in chunks for entry in chunk["choices"][0]["logprobs"]["content"]] == LOGPROBS_JSON


def test_logprobs_are_null_unless_requested(post):
    assert post_chat(post, TOP_LOGPROBS_SCRIPT)["choices"][0]["logprobs"] is None
    assert {chunk["choices"][0]["logprobs"]
            for chunk in stream_chat(post, TOP_LOGPROBS_SCRIPT, logprobs=False)} == {None}


@pytest.mark.parametrize(("model", "expected"), [("mine", "mine"), ("tgi", "loom"), ("", "loom"), (None, "loom")])
def test_requested_model_name_is_echoed(post, model, expected):
    assert post_chat(post, model=model)["model"] == expected
    assert stream_chat(post, model=model)[0]["model"] == expected


def test_headers_report_times_and_counts(post):
    status, headers, _ = post(CHAT_PATH, messages=MESSAGES, headers={"x-request-id": "mine"})
    assert status == 200
    assert [headers[f"x-{name}"] for name in (
        "compute-type", "compute-characters", "prompt-tokens", "generated-tokens", "queue-ms", "request-id")] == [
        "1-cpu", "20", "20", "4", "250.0", "mine"]
    _, headers, _ = post(CHAT_PATH, messages=MESSAGES, stream=True, headers={"x-request-id": "mine"})
    assert (headers["x-compute-characters"], headers["x-request-id"], headers["x-weft-exact"]) == ("20", "mine", "1")


def test_each_token_is_sent_before_the_next_one_exists(serve):
    async def scenario(client, engine):
        answer = await client.post(CHAT_PATH, json={"messages": MESSAGES, "stream": True})
        await engine.request_received.wait()
        [stream] = engine.streams
        for letter in "wef":
            stream.put(TokenEvent(ord(letter), letter, -1.0, False))
            assert f'"content":"{letter}"'.encode() in await answer.content.readuntil(b"\n\n")
    serve(scenario, [])


@pytest.mark.parametrize("stream", [False, True])
def test_client_disconnect_cancels_its_request(serve, caplog, stream):
    async def scenario(client, engine):
        task = asyncio.create_task(client.post(CHAT_PATH, json={"messages": MESSAGES, "stream": stream}))
        await engine.request_received.wait()
        task.cancel()
        await client.session.close()
        await engine.client_disconnected.wait()
        assert engine.disconnected_requests == engine.requests
    serve(scenario, [])
    assert not caplog.records


# ---------------------------------------------------------------------------------------------------------------------
# Tools

PAINT_TOOL = {"type": "function", "function": {"name": "paint", "strict": True, "parameters": {
    "type": "object", "properties": {"colour": {"type": "string"}}}}}
TOOL_TEMPLATE = ChatTemplate("{{ tools | tojson }}{{ messages | tojson }}<tool_call>", {})
TOOL_CALL_TEXT = '<tool_call>{"name": "paint", "arguments": {"colour": "red"}}</tool_call>'
TOOL_CALL_SCRIPT = [TokenEvent(97, TOOL_CALL_TEXT, -1.0, False), TokenEvent(256, "<|im_end|>", -0.5, True),
                    FinishedEvent(FinishReason.END_TOKEN, TOOL_CALL_TEXT, 2, make_finished_timeline())]


def render_tool_prompt(serve, **body):
    [request] = post_and_get_requests(serve, body, template=TOOL_TEMPLATE)
    tools, end = json.JSONDecoder().raw_decode(bytes(request.prompt).decode())
    return tools, json.loads(bytes(request.prompt).decode()[end:].removesuffix("<tool_call>"))


def test_tools_reach_the_template_unchanged(serve):
    assert render_tool_prompt(serve, tools=[PAINT_TOOL])[0] == [PAINT_TOOL]
    assert render_tool_prompt(serve, tools=[PAINT_TOOL], tool_choice="auto")[0] == [PAINT_TOOL]


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": None}, {"tools": [PAINT_TOOL], "tool_choice": "none"}])
def test_template_gets_no_tools_if_none_are_offered(serve, fields):
    assert render_tool_prompt(serve, **fields)[0] is None


def test_earlier_tool_calls_reach_the_template_as_objects(serve):
    call = {"id": "1", "type": "function", "function": {"name": "paint", "arguments": '{"colour": "red"}'}}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "done", "tool_call_id": "1"}]
    _, rendered_messages = render_tool_prompt(serve, messages=messages, tools=[PAINT_TOOL])
    assert rendered_messages[1] == {"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "paint", "arguments": {"colour": "red"}}}]}
    assert rendered_messages[2] == {"role": "tool", "content": "done", "tool_call_id": "1"}


def test_tool_call_text_becomes_a_tool_call(post):
    [choice] = post_chat(post, TOOL_CALL_SCRIPT, tools=[PAINT_TOOL], template=TOOL_TEMPLATE)["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "paint")
    assert json.loads(call["function"]["arguments"]) == {"colour": "red"}
    chunks = stream_chat(post, TOOL_CALL_SCRIPT, tools=[PAINT_TOOL], template=TOOL_TEMPLATE)
    first, *others = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert first["function"] == call["function"] | {"arguments": ""}
    assert "".join(other["function"]["arguments"] for other in others) == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_in_python_are_calls(post):
    [choice] = post_chat(post, make_text_events('[paint(colour="red")]'), tools=[PAINT_TOOL],
                         template=ChatTemplate("[func_name1(a=b)]", {}))["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"] | {"description": None} == {"name": "paint", "arguments": '{"colour": "red"}',
                                                        "description": None}


def test_tool_call_text_stays_text_if_no_tools_are_offered(post):
    [choice] = post_chat(post, TOOL_CALL_SCRIPT, template=TOOL_TEMPLATE)["choices"]
    assert choice["message"]["content"].startswith("<tool_call>")


@pytest.mark.parametrize(("fields", "message"), [
    ({"tools": [PAINT_TOOL], "response_format": {"type": "json_object"}, "template": ChatTemplate("<|tool_call>", {})},
     "`response_format` and `tools` are given, but no grammar can be made of calls in this model's format"),
    ({"tools": [PAINT_TOOL], "tool_choice": "draw"}, "`tool_choice` must be"),
    ({"tools": [PAINT_TOOL], "tool_choice": {"type": "function", "function": {"name": "draw"}}}, "got draw"),
    ({"tool_choice": "draw"}, "there are none"),
    ({"tool_choice": "required"}, "there are no `tools`"),
    ({"tool_choice": "required", "tools": []}, "there are no `tools`"),
])
def test_inconsistent_tool_options_are_rejected(post, fields, message):
    status, _, text = post(CHAT_PATH, messages=MESSAGES, **fields)
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] in {"tool_choice", "response_format"}
    assert message in error["message"]


def test_required_tool_call_needs_grammar_support(post):
    status, _, text = post(CHAT_PATH, messages=MESSAGES, tools=[PAINT_TOOL], tool_choice="required")
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, "tool_choice")
    assert "`tool_choice` is given, but" in error["message"]


@pytest.mark.parametrize("tools", [5, [5], [{}], [{"function": {}}], [{"function": {"name": ""}}],
                                   [{"type": "code", "function": {"name": "x"}}],
                                   [{"function": {"name": "x", "parameters": []}}]])
def test_malformed_tools_are_rejected(post, tools):
    status, _, text = post(CHAT_PATH, messages=MESSAGES, tools=tools)
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, "tools")
    assert "`tools" in error["message"]


def test_tgi_compat_keeps_tgi_quirks(serve, post):
    config = RouterConfig(compat="tgi")
    ended = [TokenEvent(97, "a", -1.0, False), TokenEvent(98, "b", -1.0, False),
             FinishedEvent(FinishReason.STOP_STRING, "ab", 2, make_finished_timeline())]
    assert post_chat(post, ended, config=config)["choices"][0]["finish_reason"] == "stop_sequence"
    chunks = stream_chat(post, ended, config=config)
    assert [chunk["choices"][0]["delta"]["role"] for chunk in chunks] == ["assistant"] * 2
    [choice] = post_chat(post, TOOL_CALL_SCRIPT, tools=[PAINT_TOOL], template=TOOL_TEMPLATE, config=config)["choices"]
    assert choice["finish_reason"] == "stop"
    [request] = post_and_get_requests(serve, {"presence_penalty": -0.5, "n": 3}, config=config)
    assert (request.sampling.repetition_penalty, request.sampling.presence_penalty) == (1.5, 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# Errors

MALFORMED_BODIES = {
    "no messages": ({}, "messages"),
    "messages that are text": ({"messages": "hi"}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "a message that is text": ({"messages": ["hi"]}, "messages.0"),
    "no role": ({"messages": [{"content": "hi"}]}, "messages.0.role"),
    "content that is a number": ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                 "messages.0.content"),
    "a part without text": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
    "a part that is text": ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages.0.content"),
    "a name that is a number": ({"messages": [{"role": "user", "content": "hi", "name": 5}]}, "messages.0.name"),
    "a temperature that is a word": ({"temperature": "hot"}, "temperature"),
    "a negative length": ({"max_tokens": -1}, "max_tokens"),
    "a length that is text": ({"max_completion_tokens": "5"}, "max_completion_tokens"),
    "a stop string that is a number": ({"stop": [5]}, "stop.0"),
    "stop strings that are an object": ({"stop": {}}, "stop"),
    "a stream that is a word": ({"stream": "yes"}, "stream"),
    "options that are a list": ({"stream_options": []}, "stream_options"),
    "a seed with a fraction": ({"seed": 1.5}, "seed"),
    "a model that is a number": ({"model": 5}, "model"),
}
INVALID_BODIES = {
    "no new tokens": ({"max_tokens": 0}, "`max_tokens` must be at least 1"),
    "more tokens than fit": ({"messages": [{"role": "user", "content": "x" * 1000}], "max_tokens": 1000},
                             "the prompt is too long: `messages` (1018 tokens) and `max_tokens` (1000) must be "
                             "at most 1600 together"),
    "long messages": ({"messages": [{"role": "user", "content": "x" * 2000}]},
                      "the prompt is too long: `messages` must have at most 1599"),
    "two lengths": ({"max_tokens": 5, "max_completion_tokens": 6}, "`max_tokens` and `max_completion_tokens`"),
    "a negative temperature": ({"temperature": -1}, "`temperature` must be at least 0, got -1"),
    "a share above all": ({"top_p": 1.5}, "`top_p`"),
    "a share above all without draws": ({"top_p": 1.5, "temperature": 0}, "`top_p`"),
    "a penalty": ({"frequency_penalty": 2.5}, "`frequency_penalty`"),
    "another penalty": ({"presence_penalty": -2.5}, "`presence_penalty`"),
    "too many stop strings": ({"stop": ["a", "b", "c", "d", "e"]}, "`stop` must hold at most 4 strings"),
    "an empty stop string": ({"stop": ""}, "`stop` must not be an empty string"),
    "a message without content": ({"messages": [{"role": "user"}]}, "a message of the role `user` has neither"),
    "content that is null": (
        {"messages": [{"role": "user", "content": None}]}, "a message of the role `user` has neither"),
    "too many choices": ({"n": 33}, "`n` must be at least 1 and at most 32 (--max-choices"),
    "no choices": ({"n": 0}, "`n` must be at least 1 and at most 32 (--max-choices"),
    "a format": ({"response_format": {"type": "json_object"}}, "`response_format` is given, but this model is served"),
    "no format": ({"response_format": "json"}, "`response_format` must be an object with a `type`"),
    "a schema": ({"response_format": {"type": "json_schema"}}, "`response_format.json_schema` is missing"),
    "too many logprobs": ({"top_logprobs": 21}, "`top_logprobs` must be at most 20 (--max-top-n-tokens), got 21"),
    "a priority": ({"priority": 11}, "`priority` must be at least -10"),
    "a salt": ({"cache_salt": ""}, "`cache_salt` must not be"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "field_path"), MALFORMED_BODIES.values(), ids=MALFORMED_BODIES)
def test_malformed_field_is_named_in_the_error(post, fields, field_path, stream):
    status, _, text = post(CHAT_PATH, **({} if fields == {} else {"messages": MESSAGES}) | {"stream": stream} | fields)
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == field_path.partition(".")[0]
    assert error["message"].startswith(f"`{field_path}` ")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [[], [PAINT_TOOL]])
def test_tgi_rejects_response_format_together_with_tools(post, tools, stream):
    """The error has text-generation-inference's exact bytes."""
    status, _, text = post(CHAT_PATH, messages=MESSAGES, tools=tools, response_format={"type": "json_object"},
                           stream=stream, config=RouterConfig(compat="tgi"))
    assert (status, text) == (
        422, '{"error":"Tool error: Grammar and tools are mutually exclusive","error_type":"tool_error"}')


def test_response_format_text_is_accepted(post):
    assert post(CHAT_PATH, messages=MESSAGES, response_format={"type": "text"})[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "message"), INVALID_BODIES.values(), ids=INVALID_BODIES)
def test_invalid_value_is_rejected_before_streaming_starts(post, fields, message, stream):
    status, headers, text = post(CHAT_PATH, **{"messages": MESSAGES, "stream": stream} | fields)
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(message)
    assert error["param"] == ("messages" if "messages" in fields else next(iter(fields)))
    assert "inputs" not in error["message"]
    assert len(headers["x-request-id"]) == 32


def test_image_content_is_rejected_with_a_clear_message(post):
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    _, _, text = post(CHAT_PATH, messages=[{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}])
    assert json.loads(text)["error"]["message"].endswith("images and other parts are not served")


@pytest.mark.parametrize(("template", "message"), [
    (None, "Template error: this model has no chat template"),
    (ChatTemplate("{{ raise_exception('roles must alternate') }}", {}), "Template error: roles must alternate")])
def test_template_failure_is_reported(post, template, message):
    for stream in (False, True):
        status, _, text = post(CHAT_PATH, messages=MESSAGES, template=template, stream=stream)
        error = json.loads(text)["error"]
        assert (status, error["param"]) == (400, "messages")
        assert error["message"].startswith(message)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "kind"), [
    (Overloaded("full", 3.5), 429, "rate_limit_error"), (NotReady("starting"), 503, "server_error")])
def test_rejected_request_has_a_status_and_retry_after(serve, error, status, kind, stream):
    async def scenario(client, engine):
        engine.submit_errors = [error]
        answer = await client.post(CHAT_PATH, json={"messages": MESSAGES, "stream": stream})
        assert (answer.status, (await answer.json())["error"]["type"]) == (status, kind)
        assert int(answer.headers["Retry-After"]) >= 1
    serve(scenario)


@pytest.mark.parametrize(("error", "status", "kind"), [
    (GenerationFailed("broken"), 500, "server_error"), (TimedOut("too late"), 408, "timeout_error")])
def test_failure_is_reported_by_status_or_within_the_stream(post, error, status, kind):
    assert post(CHAT_PATH, [FailedEvent(error)], messages=MESSAGES)[0] == status
    token, failure = stream_chat(post, [TokenEvent(97, "a", -1.0, False), FailedEvent(error)])
    assert token["choices"][0]["delta"]["content"] == "a"
    assert failure["error"]["type"] == kind


def test_stream_of_a_cancelled_request_is_cut_off(serve, caplog):
    async def scenario(client, engine):
        answer = await client.post(CHAT_PATH, json={"messages": MESSAGES, "stream": True})
        await engine.request_received.wait()
        engine.streams[0].put(FailedEvent(Cancelled("too slow")))
        with pytest.raises(ClientPayloadError):
            await answer.text()
    serve(scenario, [])
    assert not caplog.records


def test_api_key_is_required(post):
    config = RouterConfig(api_key="sk-loom")
    assert post(CHAT_PATH, messages=MESSAGES, config=config)[0] == 401
    assert post(CHAT_PATH, messages=MESSAGES, config=config, headers={"Authorization": "Bearer sk-loom"})[0] == 200


# ---------------------------------------------------------------------------------------------------------------------
# Several choices

def make_choice_script(text):
    return [*(TokenEvent(ord(character), character, -0.5, False) for character in text),
            FinishedEvent(FinishReason.END_TOKEN, text, len(text), make_finished_timeline())]


def test_choices_of_a_prompt_have_their_index_and_share_its_tokens(post):
    answer = post_chat(post, make_choice_script("ab"), make_choice_script("c"), n=2)
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [(0, "ab"), (1, "c")]
    usage = post_chat(post, make_choice_script("ab"))["usage"]
    assert answer["usage"] == {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": 3,
                               "total_tokens": usage["prompt_tokens"] + 3}


def test_streamed_choices_add_up_to_those_that_are_not_streamed(post):
    scripts = make_choice_script("ab"), make_choice_script("c"), make_choice_script("")
    *chunks, usage = stream_chat(post, *scripts, n=3, stream_options={"include_usage": True})
    whole = post_chat(post, *scripts, n=3)
    texts, reasons = ["", "", ""], ["", "", ""]
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
        reasons[choice["index"]] += choice["finish_reason"] or ""
    assert texts == [choice["message"]["content"] for choice in whole["choices"]] == ["ab", "c", ""]
    assert reasons == ["stop"] * 3
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])


def test_each_choice_has_its_own_draws_and_its_own_parser(serve):
    tool = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}

    async def scenario(client, engine):
        answer = await client.post(CHAT_PATH, json={"messages": MESSAGES, "n": 2, "seed": 7, "tools": [tool]})
        choices = (await answer.json())["choices"]
        assert [choice["message"]["content"] for choice in choices] == ["ab", "c"]
        first, second = engine.requests
        assert (first.prompt, first.id) == (second.prompt, second.id.removesuffix("-2"))
        assert first.sampling_key != second.sampling_key
    serve(scenario, make_choice_script("ab"), make_choice_script("c"))


def test_failure_of_one_choice_ends_the_stream_with_its_error(serve):
    failing = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]

    async def scenario(client, engine):
        answer = await client.post(CHAT_PATH, json={"messages": MESSAGES, "n": 2, "stream": True})
        *_, error, done, _ = (await answer.text()).split("\n\n")
        assert "broken" in json.loads(error.removeprefix("data: "))["error"]["message"]
        assert done == "data: [DONE]"
    serve(scenario, failing, make_choice_script("c"))


# ---------------------------------------------------------------------------------------------------------------------
# Usage


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/completions"])
@pytest.mark.parametrize(("compat", "num_cached"), [("none", 16), ("none", 0), ("tgi", 16)])
def test_cached_tokens_of_the_prompt_are_in_the_usage(post, path, compat, num_cached):
    timeline = make_finished_timeline()
    timeline.num_prefix_hit_tokens = num_cached
    script = [TokenEvent(97, "a", -1.0, False), FinishedEvent(FinishReason.LENGTH, "a", 1, timeline)]
    details = [{"cached_tokens": 16}] if compat == "none" and num_cached else []
    body = {"messages": MESSAGES} if path == CHAT_PATH else {"prompt": "x"}
    config = RouterConfig(compat=compat)
    usage = json.loads(post(path, [*script], **body, config=config)[2])["usage"]
    stream = post(path, [*script], **body, stream=True, stream_options={"include_usage": True}, config=config)[2]
    last_usage = json.loads(stream.split("\n\n")[-3].removeprefix("data: "))["usage"]
    for found in (usage, last_usage):
        assert [found[name] for name in found if name == "prompt_tokens_details"] == details


REASONING_TEMPLATE = ChatTemplate("{{ messages | tojson }}<think><tool_call>", {})
REASONING_TEXT = "<think>so it is</think>yes"
REASONING_SCRIPT = [*(TokenEvent(97, text, -1.0, False) for text in ("<think>", "so it", " is", "</think>", "yes")),
                    FinishedEvent(FinishReason.LENGTH, REASONING_TEXT, 5, make_finished_timeline())]


@pytest.mark.parametrize(("num_tokens", "is_inline"), [(MAX_INLINE_TOKENS, True), (MAX_INLINE_TOKENS + 1, False)])
def test_long_answers_are_rendered_off_the_event_loop(post, monkeypatch, num_tokens, is_inline):
    """Regression: the logprobs of an answer without reasoning and calls were rendered on it, 0.1 ms for each token."""
    threads = []

    def render(*arguments):
        threads.append(threading.current_thread())
        return text_chat_choice_json(*arguments)
    monkeypatch.setattr("router.http.openai.chat.text_chat_choice_json", render)
    answer = post_chat(post, make_text_events("a" * num_tokens), logprobs=True)
    assert len(answer["choices"][0]["logprobs"]["content"]) == num_tokens
    assert [thread is threading.main_thread() for thread in threads] == [is_inline]


@pytest.mark.parametrize(("script", "count"), [(REASONING_SCRIPT, 3), (END_TOKEN_SCRIPT, 0)])
@pytest.mark.parametrize("fields", [{}, {"tools": [PAINT_TOOL]}, {"n": 2}])
def test_usage_of_a_model_that_reasons_has_the_tokens_of_its_reasoning(post, script, count, fields):
    scripts = [[*script] for _ in range(fields.get("n", 1))]
    whole = post_chat(post, *map(list, scripts), template=REASONING_TEMPLATE, **fields)
    *_, last = stream_chat(post, *scripts, template=REASONING_TEMPLATE, stream_options={"include_usage": True},
                           **fields)
    assert whole["usage"] == last["usage"]
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": count * len(scripts)}


def test_other_models_and_tgi_compat_have_no_reasoning_tokens(post):
    tgi = RouterConfig(compat="tgi")
    for answer in (post_chat(post), post_chat(post, template=TOOL_TEMPLATE, tools=[PAINT_TOOL]),
                   post_chat(post, template=REASONING_TEMPLATE, config=tgi)):
        assert "completion_tokens_details" not in answer["usage"]


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize(("path", "fields"), [
    (CHAT_PATH, {"messages": MESSAGES}), (CHAT_PATH, {"messages": MESSAGES, "template": REASONING_TEMPLATE}),
    ("/v1/completions", {"prompt": "x"}), ("/v1/completions", {"prompt": "x", "logprobs": 0})])
def test_continuous_usage_is_in_every_chunk(post, path, fields, include_usage):
    script = [TokenEvent(97, "a", -1.0, False), TokenEvent(98, "b", -1.0, False), TokenEvent(99, "c", -1.0, False),
              FinishedEvent(FinishReason.LENGTH, "abc", 3, make_finished_timeline())]
    options = {"include_usage": include_usage, "continuous_usage_stats": True}
    status, headers, text = post(path, script, stream=True, stream_options=options, **fields)
    assert (status, "x-ignored-fields" in headers) == (200, False)
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert sorted({*counts}) == [1, 2, 3]
    assert counts == sorted(counts)
    assert all(chunk["usage"]["total_tokens"] == chunk["usage"]["prompt_tokens"] + count
               for chunk, count in zip(chunks, counts, strict=True))
    assert ([] in [chunk["choices"] for chunk in chunks]) == include_usage


def test_half_a_character_within_json_of_a_call_is_refused(post):
    """Regression: templates render arguments as an object, so the text of the prompt held what the body did not."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"\\ud800"}'}}
    messages = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "5"}]
    template = ChatTemplate("{% for m in messages %}{{ m.tool_calls[0].function.arguments.a if m.tool_calls else "
                            "m.content }}{% endfor %}", {})
    status, _, text = post(CHAT_PATH, messages=messages, template=template)
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, "messages")
    assert "half of a surrogate pair" in error["message"]


def test_continued_answer_keeps_its_leading_space_beside_tools(post):
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [*MESSAGES, {"role": "assistant", "content": "It is"}]
    script = [TokenEvent(97, " 42", -1.0, False),
              FinishedEvent(FinishReason.LENGTH, " 42", 1, make_finished_timeline())]
    contents = [post_chat(post, [*script], messages=asked, tools=tools)["choices"][0]["message"]["content"]
                for asked in (messages, MESSAGES)]
    assert contents == [" 42", "42"]


# ---------------------------------------------------------------------------------------------------------------------
# Ids of tokens, and streams that go on behind some


def test_stream_names_its_tokens(post):
    first, *others = stream_chat(post, make_text_events("weft"), return_token_ids=True)
    assert first["prompt_token_ids"] == [*RENDERED_PROMPT]
    assert [chunk["choices"][0]["token_ids"] for chunk in (first, *others)] == [[byte] for byte in b"weft"]
    assert not any("prompt_token_ids" in chunk for chunk in others)


def test_whole_answer_names_its_tokens(post):
    answer = post_chat(post, make_text_events("weft"), return_token_ids=True)
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([*RENDERED_PROMPT], [*b"weft"])


def test_stream_goes_on_behind_the_tokens_that_the_client_has(post):
    script = [*make_text_events("ft")[:-1], FinishedEvent(FinishReason.LENGTH, "weft", 4, make_finished_timeline())]
    *chunks, usage = stream_chat(post, script, resume_token_ids=[*b"we"], seed=1, return_token_ids=True,
                                 stream_options={"include_usage": True})
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"content": "f"}, {"content": "t"}]
    assert not any("prompt_token_ids" in chunk for chunk in chunks)
    assert usage["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("fields", "message"), [
    ({"resume_token_ids": [97]}, "`resume_token_ids` is given, but only a stream goes on"),
    ({"resume_token_ids": [97], "stream": True}, "`seed` must be given with `resume_token_ids`"),
    ({"resume_token_ids": [97], "stream": True, "n": 2, "seed": 1}, "`n` must be 1 with `resume_token_ids`")])
def test_chat_that_cannot_go_on_is_refused(post, fields, message):
    status, _, text = post(CHAT_PATH, messages=MESSAGES, **fields)
    assert status == 400
    assert json.loads(text)["error"]["message"].startswith(message)
