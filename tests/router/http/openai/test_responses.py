"""OpenAI's Responses API over a scripted engine."""

import json
import math

import pytest
from support.servers.expected_streams import make_finished_timeline, make_text_events

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed, Overloaded
from router.http.openai.responses import ResponsesRequest
from router.request import FinishReason
from router.text.chat_template import ChatTemplate

PATH = "/v1/responses"
MESSAGES_TEMPLATE = ChatTemplate("{{ messages | tojson }}", {})
TOOL = {"type": "function", "name": "paint", "description": "Paints.", "strict": True,
        "parameters": {"type": "object", "properties": {"colour": {"type": "string"}}}}
CALL_TEXT = '<tool_call>{"name": "paint", "arguments": {"colour": "red"}}</tool_call>'
CALL_SCRIPT = [TokenEvent(97, CALL_TEXT, -0.5, False), TokenEvent(256, "<|end|>", -0.5, True),
               FinishedEvent(FinishReason.END_TOKEN, CALL_TEXT, 2, make_finished_timeline())]
REQUIRED_CALL = '{"name": "paint", "arguments": {"colour": "red"}}'
TOOL_TEMPLATE = ChatTemplate("{{ tools | tojson }}{{ messages[0].content }}<tool_call>", {})
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def respond(post, *scripts, **body):
    status, _, text = post(PATH, *scripts, **{"input": "hi"} | body)
    assert status == 200, text
    return json.loads(text)


def get_error(post, **body):
    status, _, text = post(PATH, **{"input": "hi"} | body)
    assert status == 400, text
    return json.loads(text)["error"]


def post_and_get_request(serve, body, *scripts, **serve_options):
    async def scenario(client, engine):
        answer = await client.post(PATH, json={"input": "hi"} | body)
        assert answer.status == 200, await answer.text()
        return engine.requests[-1]
    return serve(scenario, *scripts, **serve_options)


def get_template_messages(serve, body):
    return json.loads(bytes(post_and_get_request(serve, body, template=MESSAGES_TEMPLATE).prompt))


# ---------------------------------------------------------------------------------------------------------------------
# Requests


def test_text_and_instructions_become_messages(serve):
    request = post_and_get_request(serve, {"instructions": "be"})
    assert bytes(request.prompt) == b"system: be\nuser: hi\nassistant: "


def test_items_of_a_turn_become_one_message_of_the_assistant(serve):
    messages = get_template_messages(serve, {"input": [
        {"role": "developer", "content": "be"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                        {"type": "input_text", "text": "b"}]},
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}],
         "content": [{"type": "reasoning_text", "text": "why"}], "encrypted_content": None},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "ok", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "!"}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": "{"},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "6"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "only"}]},
        {"type": "function_call", "call_id": "call_3", "name": "f", "arguments": ""},
        {"role": "user", "content": "c"}]})
    calls = [{"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
             for number, name, arguments in ((1, "f", {"x": 1}), (2, "g", "{"), (3, "f", ""))]
    assert messages == [
        {"role": "system", "content": "be"}, {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "ok!", "tool_calls": calls[:2], "reasoning_content": "why", "thinking": "why"},
        {"role": "tool", "content": "5", "tool_call_id": "call_1"},
        {"role": "tool", "content": "6", "tool_call_id": "call_2"},
        {"role": "assistant", "content": "", "tool_calls": calls[2:], "reasoning_content": "only", "thinking": "only"},
        {"role": "user", "content": "c"}]


def test_texts_of_the_assistant_stay_apart_unless_calls_are_between(serve):
    text, call = {"role": "assistant", "content": "a"}, {"type": "function_call", "call_id": "c", "name": "f",
                                                         "arguments": "{}"}
    messages = get_template_messages(serve, {"input": [text, text, call, text, {"role": "user", "content": "b"}]})
    assert [(message["content"], "tool_calls" in message) for message in messages] == [
        ("a", False), ("aa", True), ("b", False)]


def test_output_of_a_response_is_valid_input(post, serve):
    output = respond(post, CALL_SCRIPT, tools=[TOOL], template=TOOL_TEMPLATE)["output"]
    user, assistant = get_template_messages(serve, {"input": [{"role": "user", "content": "x"}, *output]})
    assert (user["content"], assistant["tool_calls"][0]["id"]) == ("x", output[0]["call_id"])


def test_parameters_reach_the_request(serve):
    request = post_and_get_request(serve, {
        "temperature": 0.5, "top_p": 0.75, "max_output_tokens": 9, "top_logprobs": 3, "top_k": 7, "min_p": 0.25,
        "repetition_penalty": 2, "frequency_penalty": 0.5, "presence_penalty": 1, "stop": ["."], "priority": 3})
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.75, 7, 0.25)
    assert (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) == (2, 0.5, 1)
    assert (sampling.top_n_tokens, sampling.raw_logprobs) == (3, True)
    assert (request.max_new_tokens, request.stop_strings, request.priority) == (9, (".",), 3)


def test_defaults_are_those_of_chats(serve):
    async def scenario(client, engine):
        await client.post(PATH, json={"input": "hi", "seed": 1, "cache_salt": "s"})
        await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "seed": 1,
                                                        "cache_salt": "s"})
        response, chat = engine.requests
        for name in ("prompt", "sampling", "sampling_key", "max_new_tokens", "end_tokens", "cache_namespace"):
            assert getattr(response, name) == getattr(chat, name)
    serve(scenario)


def test_reasoning_effort_and_variables_reach_the_template(serve):
    template = ChatTemplate("{{ reasoning_effort }} {{ enable_thinking }} {{ mood }}", {})
    request = post_and_get_request(serve, {"reasoning": {"effort": "none", "summary": "auto"},
                                           "chat_template_kwargs": {"mood": "glad"}}, template=template)
    assert bytes(request.prompt) == b"none False glad"


def test_template_receives_the_tools_as_those_of_chats(serve):
    template = ChatTemplate("{{ tools | tojson }}", {})
    [tool] = json.loads(bytes(post_and_get_request(serve, {"tools": [TOOL]}, template=template).prompt))
    function = {name: value for name, value in TOOL.items() if name not in {"type", "strict"}}
    assert tool == {"type": "function", "function": function}
    none = post_and_get_request(serve, {"tools": [TOOL], "tool_choice": "none"}, template=template)
    assert bytes(none.prompt) == b"null"


@pytest.mark.parametrize("text_format", [
    {"type": "json_object"}, {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}])
def test_format_of_the_text_is_a_grammar(serve, text_format):
    body = {"text": {"format": text_format, "verbosity": "low"}, "tools": [TOOL], "tool_choice": "none"}
    assert post_and_get_request(serve, body, grammars=True).grammar is not None
    assert post_and_get_request(serve, {"text": {"format": {"type": "text"}}}, grammars=True).grammar is None


def test_fields_without_effect_are_reported(post):
    status, headers, _ = post(PATH, input="hi", user="u", service_tier="flex", prompt_cache_key="k", store=True,
                              include=["reasoning.encrypted_content"], background=False, truncation="disabled")
    assert (status, headers["x-ignored-fields"]) == (200, "user, service_tier, prompt_cache_key")


@pytest.mark.parametrize(("body", "param", "message"), [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored here"),
    ({"conversation": {"id": "conv_1"}}, "conversation", "nothing is stored here"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "no stored prompts"),
    ({"context_management": [{"type": "compaction"}]}, "context_management", "never shortened"),
    ({"max_tool_calls": 3}, "max_tool_calls", "no built-in tools"),
    ({"moderation": {"model": "x"}}, "moderation", "nothing is moderated"),
    ({"background": True}, "background", "a client that waits"),
    ({"truncation": "auto"}, "truncation", "must be `disabled`"),
    ({"include": ["file_search_call.results"]}, "include",
     "or 'reasoning.encrypted_content', got 'file_search_call.results'"),
    ({"tools": [{"type": "web_search"}]}, "tools", "is of the type `web_search`, which is not served"),
    ({"tools": [TOOL | {"parameters": {"x": math.nan}}]}, "tools", "not finite"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice",
     "is of the type `allowed_tools`, which is not served"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "dig"}}, "tool_choice", "got dig"),
    ({"tools": [TOOL], "text": {"format": {"type": "json_object"}}, "template": ChatTemplate("<|tool_call>", {})},
     "text", "`text.format` and `tools` are given, but no grammar can be made of calls"),
    ({"text": {"format": {"type": "grammar"}}}, "text", "is of the type `grammar`, which is not served"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text", "`text.format.schema` is missing"),
    ({"text": {"format": {"type": "json_schema", "schema": {"x-guidance": {}}}}}, "text",
     "`text.format.schema.x-guidance` is not supported"),
    ({"text": {"format": {"type": "json_object"}}}, "text", "`text.format` is given, but this model is served without"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input",
     "is of the type `item_reference`, which is not served"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "`input_image`"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]}]}, "input",
     "`input_file`"),
    ({"input": [{"type": "{x}" * 99}]}, "input", "`{x}{x}"),
    ({"input": []}, "input", "at least 1 item"),
    ({"input": "x" * 3000}, "input", "must have at most 1599 tokens"),
    ({"max_output_tokens": 0}, "max_output_tokens", "must be at least 1"),
    ({"template": ChatTemplate("{{ raise_exception('no') }}", {})}, "input", "no"),
])
def test_what_is_not_served_is_refused_by_name(post, body, param, message):
    error = get_error(post, **body)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert message in error["message"]


@pytest.mark.parametrize("compat", ["tgi", "lorax"])
def test_errors_have_openais_format_whatever_the_dialect(post, compat):
    assert get_error(post, prompt={}, config=RouterConfig(compat=compat))["param"] == "prompt"
    assert respond(post, config=RouterConfig(compat=compat))["output"][0]["content"][0]["text"] == "weft"


# ---------------------------------------------------------------------------------------------------------------------
# Responses


def test_response_repeats_the_request(post):
    response = respond(post, make_text_events("ab", FinishReason.STOP_STRING), stop="b", instructions="be", top_p=0.5,
                       metadata={"a": "b"}, model="tgi", tools=[TOOL], parallel_tool_calls=False, store=True,
                       tool_choice="none", reasoning={"effort": "low"})
    assert {name: response[name] for name in (
        "object", "status", "model", "instructions", "metadata", "temperature", "top_p", "tools", "tool_choice",
        "parallel_tool_calls", "text", "reasoning", "truncation", "max_output_tokens", "store", "background",
        "previous_response_id")} == {
            "object": "response", "status": "completed", "model": "loom", "instructions": "be", "metadata": {"a": "b"},
            "temperature": 1, "top_p": 0.5, "tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False,
            "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low", "summary": None},
            "truncation": "disabled", "max_output_tokens": None, "store": False, "background": False,
            "previous_response_id": None}
    assert response["output"][0]["content"][0]["text"] == "a"


def test_function_calls_are_items(post):
    response = respond(post, CALL_SCRIPT, tools=[TOOL], template=TOOL_TEMPLATE)
    [call] = response["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "paint", '{"colour": "red"}')
    assert response["status"] == "completed"


def test_required_call_streams_its_arguments(serve):
    async def scenario(client, engine):
        answer = await client.post(PATH, json={"input": "hi", "tools": [TOOL], "stream": True,
                                               "tool_choice": {"type": "function", "name": "paint"}})
        text = await answer.text()
        events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert engine.requests[0].grammar is not None
        deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
        assert ("".join(deltas), len(deltas) > 9) == ('{"colour": "red"}', True)
        response = events[-1]["response"]
        assert response["tool_choice"] == {"type": "function", "name": "paint"}
        assert response["output"][0]["arguments"] == '{"colour": "red"}'
    serve(scenario, make_text_events(REQUIRED_CALL, FinishReason.END_TOKEN), grammars=True)


def test_headers_are_those_of_chats(post):
    _, whole, _ = post(PATH, input="hi")
    _, streamed, text = post(PATH, input="hi", stream=True)
    assert (whole["x-generated-tokens"], whole["x-weft-exact"]) == ("4", "1")
    assert streamed["x-request-id"]
    assert text.count("event: response.incomplete") == 1
    assert "[DONE]" not in text


def test_error_before_the_stream_has_its_status(serve):
    async def scenario(client, engine):
        engine.submit_errors = [Overloaded("full")]
        answer = await client.post(PATH, json={"input": "hi", "stream": True})
        assert (answer.status, (await answer.json())["error"]["code"]) == (429, "rate_limit_exceeded")
    serve(scenario)


def test_error_in_a_stream_is_its_last_event(post):
    script = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]
    status, _, text = post(PATH, script, input="hi", stream=True)
    assert status == 200
    types = [line.removeprefix("event: ") for line in text.split("\n") if line.startswith("event: ")]
    assert types[-3:] == ["response.output_text.delta", "response.failed", "error"]


def test_function_of_a_choice_may_have_the_name_of_an_option():
    tools = [TOOL | {"name": "none"}]
    body = {"input": "x", "tools": tools, "tool_choice": {"type": "function", "name": "none"}}
    chat_request = ResponsesRequest.model_validate(body).to_chat_request()
    assert (chat_request.needs_tool_call, len(chat_request.tools)) == (True, 1)
    assert ResponsesRequest.model_validate(body | {"tool_choice": "none"}).to_chat_request().tools is None
