"""Bodies of Anthropic's Messages, and the chats that are made of them."""

import json

import pytest

from router.errors import InvalidRequest, InvalidTools
from router.http.anthropic.requests import AnthropicMessagesRequest

MESSAGES = [{"role": "user", "content": "hi"}]
TEXT_A, TEXT_B = {"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "paint", "input": {"color": "red"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
PAINT_SCHEMA = {"type": "object", "properties": {"color": {"type": "string"}}}
PAINT_TOOL = {"name": "paint", "description": "Paints.", "input_schema": PAINT_SCHEMA, "cache_control": None}


def parse_body(**fields):
    return AnthropicMessagesRequest.model_validate_json(json.dumps({"max_tokens": 5, "messages": MESSAGES} | fields))


def to_chat(**fields):
    return parse_body(**fields).to_chat_request()


def to_chat_messages(*messages, **fields):
    return [message.model_dump(exclude_none=True) for message in to_chat(messages=messages, **fields).messages]


@pytest.mark.parametrize("content", ["a\nb", [TEXT_A, TEXT_B]])
def test_text_blocks_are_lines_of_one_text(content):
    assert to_chat_messages({"role": "user", "content": content}) == [{"role": "user", "content": "a\nb"}]
    assert to_chat_messages(*MESSAGES, system=content)[0] == {"role": "system", "content": "a\nb"}


def test_adjacent_messages_of_a_role_become_one():
    system, user = {"role": "system", "content": "be"}, {"role": "user", "content": [TEXT_A]}
    assert to_chat_messages(system, user, *MESSAGES, {"role": "assistant", "content": ""}, user, system="first") == [
        {"role": "system", "content": "first\nbe"}, {"role": "user", "content": "a\nhi"},
        {"role": "assistant", "content": ""}, {"role": "user", "content": "a"}]


def test_earlier_answer_keeps_its_reasoning_and_its_calls():
    blocks = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "redacted_thinking", "data": "x"},
              TEXT_A, CALL]
    assert to_chat_messages(*MESSAGES, {"role": "assistant", "content": blocks})[1] == {
        "role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "paint", "arguments": {"color": "red"}}}]}


def test_tool_results_precede_the_text_of_their_message():
    blocks = [TEXT_A, RESULT, {"type": "tool_result", "tool_use_id": "2", "content": [TEXT_A, TEXT_B]}]
    results = [{"role": "tool", "tool_call_id": "toolu_1", "content": "done"},
               {"role": "tool", "tool_call_id": "2", "content": "a\nb"}]
    assert to_chat_messages({"role": "user", "content": blocks}) == [*results, {"role": "user", "content": "a"}]
    assert to_chat_messages({"role": "user", "content": blocks[1:]}) == results


def test_failed_tool_is_named_as_an_error():
    block = {"type": "tool_result", "tool_use_id": "1", "is_error": True}
    assert to_chat_messages({"role": "user", "content": [block]})[0]["content"] == "Error: "
    assert to_chat_messages({"role": "user", "content": [block | {"content": "no"}]})[0]["content"] == "Error: no"


def test_tools_become_functions():
    [tool] = to_chat(tools=[PAINT_TOOL]).tools
    assert tool.model_dump(exclude_unset=True) == {"type": "function", "function": {
        "name": "paint", "description": "Paints.", "parameters": PAINT_SCHEMA}}
    assert to_chat(tools=[]).tools is None


@pytest.mark.parametrize(("tool_choice", "expected"), [
    ({"type": "auto"}, "auto"), ({"type": "none"}, "none"), ({"type": "any"}, "required")])
def test_tool_choice_is_that_of_openai(tool_choice, expected):
    chat = to_chat(tools=[PAINT_TOOL], tool_choice=tool_choice | {"disable_parallel_tool_use": True})
    assert (chat.tool_choice, chat.parallel_tool_calls) == (expected, False)


def test_tool_choice_may_name_a_tool():
    chat = to_chat(tools=[PAINT_TOOL], tool_choice={"type": "tool", "name": "paint"})
    assert (chat.tool_choice.function.name, chat.needs_tool_call, chat.parallel_tool_calls) == ("paint", True, True)


@pytest.mark.parametrize(("fields", "message"), [
    ({"tool_choice": {"type": "any"}}, r"`tool_choice` must name one of the `tools` \(there are none\), got any"),
    ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [PAINT_TOOL]}, r"one of the `tools` \(paint\), got x"),
    ({"tool_choice": {"type": "tool"}, "tools": [PAINT_TOOL]}, r"one of the `tools` \(paint\), got tool"),
    ({"tool_choice": {"type": "any"}, "tools": [PAINT_TOOL | {"input_schema": {"extends": {}}}]},
     r"`tools\.0\.input_schema\.extends` is not supported"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"extends": {}}}}},
     r"`output_config\.format\.schema\.extends` is not supported"),
])
def test_error_names_the_fields_of_this_dialect(fields, message):
    with pytest.raises((InvalidRequest, InvalidTools), match=message):
        to_chat(**fields)


@pytest.mark.parametrize(("thinking", "expected"), [
    ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
    ({"type": "disabled"}, {"enable_thinking": False}), ({"type": "adaptive"}, None), (None, None)])
def test_thinking_is_switched_in_the_template(thinking, expected):
    assert to_chat(thinking=thinking).chat_template_kwargs == expected


@pytest.mark.parametrize(("effort", "expected"), [("low", "low"), ("max", "xhigh"), (None, None)])
def test_effort_is_that_of_the_reasoning(effort, expected):
    assert to_chat(output_config={"effort": effort}).reasoning_effort == expected


def test_output_format_is_a_response_format():
    chat = to_chat(output_config={"format": {"type": "json_schema", "schema": PAINT_SCHEMA}})
    assert chat.response_format == {"type": "json_schema", "json_schema": {"schema": PAINT_SCHEMA}}


def test_sampling_fields_are_those_of_the_chat():
    fields = {"model": "m", "max_tokens": 9, "temperature": 0.5, "top_p": 0.75, "top_k": 3, "seed": 7,
              "cache_salt": "s", "priority": 2}
    chat = to_chat(stop_sequences=["a"], **fields)
    assert {name: getattr(chat, name) for name in fields} == fields
    assert chat.stop == ["a"]


def test_ignored_fields_are_named_also_within_objects():
    body = parse_body(metadata={"user_id": "u"}, thinking={"type": "enabled", "budget_tokens": 1024},
                      output_config={"task_budget": {}}, tools=[PAINT_TOOL])
    assert body.find_unknown_fields().ignored == [
        "metadata", "thinking.budget_tokens", "output_config.task_budget"]
