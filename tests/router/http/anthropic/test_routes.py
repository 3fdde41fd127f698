"""Anthropic's Messages over a scripted engine."""

import json

import pytest
from support.servers.expected_streams import make_finished_timeline, make_text_events
from support.servers.fake_adapter_store import FakeAdapterStore

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed, NotReady, Overloaded
from router.request import FinishReason
from router.text.chat_template import ChatTemplate

MESSAGES_PATH, COUNT_PATH = "/v1/messages", "/v1/messages/count_tokens"
BODY = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
PAINT_TOOL = {"name": "paint", "input_schema": {"type": "object", "properties": {"color": {"type": "string"}}}}
TOOL_TEMPLATE = ChatTemplate("{{ tools | tojson }}{{ messages | tojson }}<tool_call>", {})
TOOL_CALL_TEXT = 'Yes.<tool_call>{"name": "paint", "arguments": {"color": "red"}}</tool_call>'
TOOL_CALL_SCRIPT = [TokenEvent(97, TOOL_CALL_TEXT, -1.0, False), TokenEvent(256, "<|im_end|>", -0.5, True),
                    FinishedEvent(FinishReason.END_TOKEN, TOOL_CALL_TEXT, 2, make_finished_timeline())]


def post_message(post, *scripts, path=MESSAGES_PATH, **fields):
    status, _, text = post(path, *scripts, **BODY | fields)
    assert status == 200, text
    return json.loads(text)


def stream_message(post, *scripts, **fields):
    """Return the names of the events, and their data."""
    status, headers, text = post(MESSAGES_PATH, *scripts, **BODY | fields, stream=True)
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    names, data = zip(*(event.split("\ndata: ") for event in text.removesuffix("\n\n").split("\n\n")), strict=True)
    return [name.removeprefix("event: ") for name in names], [*map(json.loads, data)]


def post_and_get_error(post, path=MESSAGES_PATH, config=None, **fields):
    status, _, text = post(path, config=config, **BODY | fields)
    error = json.loads(text)
    assert error["type"] == "error"
    return status, error["error"]["type"], error["error"]["message"]


def test_answer_is_a_message(post):
    message = post_message(post, make_text_events("weft", FinishReason.END_TOKEN))
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "weft"}],
        "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                  "output_tokens": 4}}


def test_stream_has_an_event_for_each_piece(post):
    names, events = stream_message(post, make_text_events("ab"))
    assert names == ["message_start", "ping", "content_block_start", *["content_block_delta"] * 2, "content_block_stop",
                     "message_delta", "message_stop"]
    assert "".join(event["delta"]["text"] for event in events[3:5]) == "ab"
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 2


def test_stop_sequence_is_left_out_and_named(post):
    script = make_text_events("a STOP", FinishReason.STOP_STRING)
    message = post_message(post, script, stop_sequences=["STOP", "x"])
    assert (message["content"][0]["text"], message["stop_reason"], message["stop_sequence"]) == (
        "a ", "stop_sequence", "STOP")
    _, events = stream_message(post, script, stop_sequences=["STOP", "x"])
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "STOP"}


def test_tool_call_is_a_block_with_its_input(post):
    message = post_message(post, TOOL_CALL_SCRIPT, tools=[PAINT_TOOL], template=TOOL_TEMPLATE)
    text, call = message["content"]
    assert text == {"type": "text", "text": "Yes."}
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "paint", "input": {"color": "red"}}
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("fields", [{"tools": [PAINT_TOOL]}, {}])
def test_count_is_that_of_the_prompt(post, fields):
    message = post_message(post, system="be", template=TOOL_TEMPLATE, **fields)
    count = post_message(post, path=COUNT_PATH, system="be", template=TOOL_TEMPLATE, **fields)
    assert count == {"input_tokens": message["usage"]["input_tokens"]}


def test_headers_report_times_and_ignored_fields(post):
    headers = post(MESSAGES_PATH, **BODY, metadata={}, headers={"x-request-id": "mine"})[1]
    assert [headers[f"x-{name}"] for name in ("prompt-tokens", "generated-tokens", "ignored-fields", "request-id")] == [
        "20", "4", "metadata", "mine"]
    headers = post(MESSAGES_PATH, **BODY, metadata={}, stream=True)[1]
    assert (headers["x-compute-characters"], headers["x-ignored-fields"]) == ("20", "metadata")
    assert post(COUNT_PATH, **BODY)[1]["x-ignored-fields"] == "max_tokens"


def test_parameters_reach_the_request(serve):
    async def scenario(client, engine):
        fields = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.75, "top_k": 3, "stop_sequences": ["."],
                  "priority": 2}
        assert (await client.post(MESSAGES_PATH, json=BODY | fields)).status == 200
        [request] = engine.requests
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 3)
        assert (request.max_new_tokens, request.stop_strings, request.priority) == (9, (".",), 2)
    serve(scenario)


INVALID_BODIES = {
    "no length": ({"max_tokens": None}, "`max_tokens` must be an integer, got null"),
    "no tokens": ({"max_tokens": 0}, "`max_tokens` must be at least 1, got 0"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
                 "`messages.0.user.content.0` must have one of 'text', 'tool_result' as 'type', got 'image'"),
    "a document in a result": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
            {"type": "document", "text": ""}]}]}]},
        "`messages.0.user.content.0.tool_result.content.0.type` must be 'text', got"),
    "a call by the user": ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
                           "`messages.0.user.content.0` must have one of 'text', 'tool_result' as 'type'"),
    "another role": ({"messages": [{"role": "tool", "content": "x"}]},
                     "`messages.0` must have one of 'system', 'user', 'assistant' as 'role', got 'tool'"),
    "a tool of the server": ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                             "`tools.0.type` must be `custom`: tools that run on the server are not supported"),
    "servers": ({"mcp_servers": []}, "`mcp_servers` is not supported by this server; leave it out"),
    "too many stop sequences": ({"stop_sequences": [*"abcde"]}, "`stop_sequences` must hold at most 4 strings"),
    "an empty stop sequence": ({"stop_sequences": [""]}, "`stop_sequences` must not be an empty string"),
    "a long stop sequence": ({"stop_sequences": ["x" * 1025]}, "a string in `stop_sequences` must have at most 1024"),
    "a long prompt": ({"messages": [{"role": "user", "content": "x" * 2000}]},
                      "the prompt is too long: `messages` ("),
    "a required call": ({"tools": [PAINT_TOOL], "tool_choice": {"type": "any"}},
                        "`tool_choice` is given, but this model is served without grammars"),
    "a format": ({"output_config": {"format": {"type": "json_schema", "schema": {}}}},
                 "`output_config.format` is given, but this model is served without grammars"),
}


@pytest.mark.parametrize("compat", ["none", "tgi", "lorax"])
@pytest.mark.parametrize(("fields", "message"), INVALID_BODIES.values(), ids=INVALID_BODIES)
def test_invalid_body_is_refused_with_the_name_of_its_field(post, fields, message, compat):
    status, kind, text = post_and_get_error(post, config=RouterConfig(compat=compat), **fields)
    assert (status, kind) == (400, "invalid_request_error")
    assert text.startswith(message), text


def test_count_of_a_prompt_that_is_too_long_is_in_the_error(post):
    message = {"role": "user", "content": "x" * 2000}
    status, _, text = post_and_get_error(post, COUNT_PATH, messages=[message])
    assert (status, "at most 1599 tokens" in text, "got 2018" in text) == (400, True, True)


def test_unknown_model_is_not_found_where_adapters_are_served(serve):
    async def scenario(client, _):
        answer = await client.post(MESSAGES_PATH, json=BODY | {"model": "nobody"})
        error = (await answer.json())["error"]
        assert (answer.status, error["type"], "no model 'nobody'" in error["message"]) == (404, "not_found_error", True)
    serve(scenario, store=FakeAdapterStore())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "kind"), [
    (Overloaded("full", 3.5), 429, "rate_limit_error"), (NotReady("starting"), 503, "overloaded_error")])
def test_rejected_request_has_a_status_and_retry_after(serve, error, status, kind, stream):
    async def scenario(client, engine):
        engine.submit_errors = [error]
        answer = await client.post(MESSAGES_PATH, json=BODY | {"stream": stream})
        assert (answer.status, (await answer.json())["error"]["type"]) == (status, kind)
        assert int(answer.headers["Retry-After"]) >= 1
    serve(scenario)


def test_failure_within_a_stream_is_its_last_event(post):
    script = [TokenEvent(97, "a", -1.0, False), FailedEvent(GenerationFailed("broken"))]
    assert post(MESSAGES_PATH, script[1:], **BODY)[0] == 500
    names, events = stream_message(post, script)
    assert names[-3:] == ["content_block_start", "content_block_delta", "error"]
    assert events[-1] == {"type": "error", "error": {"type": "api_error",
                                                     "message": "Request failed during generation: broken"}}


@pytest.mark.parametrize("header", [{"x-api-key": "sk-loom"}, {"Authorization": "Bearer sk-loom"}])
def test_key_is_read_from_either_header(post, header):
    config = RouterConfig(api_key="sk-loom")
    assert post(MESSAGES_PATH, **BODY, config=config, headers=header)[0] == 200
    status, error_type, message = post_and_get_error(post, config=config)
    assert (status, error_type) == (401, "authentication_error")
    assert message == "a key is needed, sent as `Authorization: Bearer KEY` or `x-api-key: KEY`"
