"""Checks of a server with Anthropic's Python client: `python anthropic_client.py URL`."""

import sys
from collections.abc import Callable

import anthropic

CLIENT = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
MESSAGE = {"model": "weft/demo", "max_tokens": 40, "messages": [{"role": "user", "content": "Count to five."}],
           "extra_body": {"temperature": 0}}
WEATHER_TOOL = {"name": "get_weather", "description": "Tells the weather in a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}}
WEATHER_MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]


def expect_error(exception_type: type[anthropic.APIStatusError],
                 call: Callable[[], object]) -> anthropic.APIStatusError:
    """Return the exception that the client raises; its message contains the server's reason."""
    try:
        call()
    except exception_type as raised:
        error = raised
    else:
        raise AssertionError(f"there was no {exception_type.__name__}")
    assert type(error) is exception_type
    assert error.body["error"]["message"] in error.message
    return error


def check_messages() -> None:
    message = CLIENT.messages.create(**MESSAGE)
    assert [(block.type, block.text) for block in message.content] == [("text", "1, 2, 3, 4, 5.")]
    assert (message.role, message.model, message.stop_reason) == ("assistant", "weft/demo", "end_turn")
    stopped = CLIENT.messages.create(**MESSAGE, stop_sequences=["3"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("1, 2, ", "stop_sequence", "3")
    short = CLIENT.messages.create(**MESSAGE | {"max_tokens": 2})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)


def check_continued_answer() -> None:
    messages = [*MESSAGE["messages"], {"role": "assistant", "content": "1, 2,"}]
    assert CLIENT.messages.create(**MESSAGE | {"messages": messages}).content[0].text.strip() == "3, 4, 5."


def check_streams() -> None:
    whole = CLIENT.messages.create(**MESSAGE)
    with CLIENT.messages.stream(**MESSAGE) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == message.content[0].text == whole.content[0].text
    assert (message.stop_reason, message.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert count_prompt_tokens(message) == count_prompt_tokens(whole)
    kinds = [event.type for event in CLIENT.messages.create(**MESSAGE, stream=True)]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])


def count_prompt_tokens(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


def check_tools() -> None:
    """Check a call that is required, one that the model chooses to make, and the answer to its result."""
    fields = MESSAGE | {"messages": WEATHER_MESSAGES, "tools": [WEATHER_TOOL]}
    for tool_choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "auto"}):
        message = CLIENT.messages.create(**fields, tool_choice=tool_choice)
        *_, call = message.content
        assert (call.type, call.name, message.stop_reason) == ("tool_use", "get_weather", "tool_use")
        assert call.input.keys() == {"city"}
        with CLIENT.messages.stream(**fields, tool_choice=tool_choice) as stream:
            *_, streamed_call = stream.get_final_message().content
        assert (streamed_call.name, streamed_call.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    answer = CLIENT.messages.create(**fields | {"messages": [
        *WEATHER_MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]})
    assert answer.content


def check_cut_off_call() -> None:
    """Check that the input of a call that is cut off is what the client makes of the pieces of a stream."""
    fields = MESSAGE | {"messages": WEATHER_MESSAGES, "tools": [WEATHER_TOOL], "tool_choice": {"type": "any"}}
    for max_tokens in range(1, 20):
        message = CLIENT.messages.create(**fields | {"max_tokens": max_tokens})
        with CLIENT.messages.stream(**fields | {"max_tokens": max_tokens}) as stream:
            streamed = stream.get_final_message()
        assert streamed.stop_reason == message.stop_reason
        assert [block.model_dump(exclude={"id"}) for block in streamed.content] == [
            block.model_dump(exclude={"id"}) for block in message.content]


def check_output_format() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
              "additionalProperties": False}
    message = CLIENT.messages.create(**MESSAGE, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert message.content[0].text.startswith('{"name":')


def check_counts() -> None:
    fields = {"model": "weft/demo", "messages": WEATHER_MESSAGES, "system": "Be brief.", "tools": [WEATHER_TOOL]}
    count = CLIENT.messages.count_tokens(**fields).input_tokens
    assert count == count_prompt_tokens(CLIENT.messages.create(**fields, max_tokens=1))


def check_models() -> None:
    assert [model.id for model in CLIENT.models.list()] == ["weft/demo", "json", "kjv", "pirate", "shout"]
    assert CLIENT.models.retrieve("weft/demo").display_name == "weft/demo"


def check_errors() -> None:
    invalid = expect_error(anthropic.BadRequestError, lambda: CLIENT.messages.create(**MESSAGE | {"max_tokens": 0}))
    assert invalid.body["error"] == {"type": "invalid_request_error",
                                     "message": "`max_tokens` must be at least 1, got 0"}
    missing = expect_error(anthropic.NotFoundError,
                           lambda: CLIENT.messages.create(**MESSAGE | {"model": "org/nobody"}))
    assert "org/nobody" in missing.message
    expect_error(anthropic.NotFoundError, CLIENT.messages.batches.list)


for check in (check_messages, check_continued_answer, check_streams, check_tools, check_cut_off_call,
              check_output_format, check_counts, check_models, check_errors):
    check()
    sys.stdout.write(f"anthropic: {check.__name__}\n")
