"""Checks of the Responses API with OpenAI's Python client: `python responses_client.py URL`."""

import json
import sys

import openai
from openai.types.responses import Response
from pydantic import BaseModel

CLIENT = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
COUNTING = {"model": "weft/demo", "input": "Count to five.", "temperature": 0}
WEATHER_TOOL = {
    "type": "function", "name": "get_weather", "description": "Tells the weather in a city.", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
                   "additionalProperties": False}}
WEATHER = {"model": "weft/demo", "tools": [WEATHER_TOOL], "temperature": 0}
WEATHER_MESSAGE = {"role": "user", "content": "What is the weather in Paris?"}


class Person(BaseModel):
    name: str


def check_texts() -> None:
    """Check that a response has every field that the client's type needs, for a text and for items."""
    response = CLIENT.responses.create(**COUNTING)
    assert (response.output_text, response.status) == ("1, 2, 3, 4, 5.", "completed")
    Response.model_validate(response.to_dict(), strict=True)
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 2
    items = CLIENT.responses.create(**COUNTING | {"input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Count to five."}]}]})
    assert items.output_text == response.output_text
    short = CLIENT.responses.create(**COUNTING, max_output_tokens=3, top_logprobs=2,
                                    include=["message.output_text.logprobs"])
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [len(token.top_logprobs) for token in short.output[0].content[0].logprobs] == [2, 2, 2]


def check_streams() -> None:
    text = ""
    for event in CLIENT.responses.create(**COUNTING, stream=True):
        type(event).model_validate(event.to_dict(), strict=True)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert (text, event.type, event.response.output_text) == ("1, 2, 3, 4, 5.", "response.completed", text)
    with CLIENT.responses.stream(**COUNTING) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        assert (snapshots[-1], stream.get_final_response().output_text) == (text, text)


def check_tool_calls() -> None:
    """Check a call that the model chooses, a required one, and the answer to its result."""
    [chosen] = CLIENT.responses.create(**WEATHER, input=[WEATHER_MESSAGE]).output
    assert (chosen.type, chosen.name) == ("function_call", "get_weather")
    with CLIENT.responses.stream(**WEATHER, input=[WEATHER_MESSAGE], tool_choice="required") as stream:
        [event] = [event for event in stream if event.type == "response.function_call_arguments.done"]
        [call] = stream.get_final_response().output
    assert event.arguments == call.arguments
    assert json.loads(call.arguments).keys() == {"city"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees and sunny"}
    answer = CLIENT.responses.create(**WEATHER, input=[WEATHER_MESSAGE, call, result], tool_choice="none")
    assert (answer.status, bool(answer.output_text)) == ("completed", True)


def check_schemas() -> None:
    question = {"model": "weft/demo", "input": "Who is it?", "temperature": 0, "max_output_tokens": 60}
    text_format = {"type": "json_schema", "name": "person", "strict": True, "schema": {
        "type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
        "additionalProperties": False}}
    response = CLIENT.responses.create(**question, text={"format": text_format})
    assert json.loads(response.output_text).keys() == {"name"}
    Response.model_validate(response.to_dict(), strict=True)
    parsed = CLIENT.responses.parse(**question, text_format=Person)
    assert isinstance(parsed.output_parsed, Person)


def check_errors() -> None:
    error = expect_invalid_request(previous_response_id="resp_1")
    assert (error.param, "nothing is stored here" in error.message) == ("previous_response_id", True)
    error = expect_invalid_request(tools=[{"type": "web_search"}])
    assert (error.param, "`web_search`, which is not served" in error.message) == ("tools", True)


def expect_invalid_request(**options: object) -> openai.BadRequestError:
    try:
        CLIENT.responses.create(**COUNTING, **options)
    except openai.BadRequestError as error:
        return error
    raise AssertionError("there was no error")


for check in (check_texts, check_streams, check_tool_calls, check_schemas, check_errors):
    check()
    sys.stdout.write(f"responses: {check.__name__}\n")
