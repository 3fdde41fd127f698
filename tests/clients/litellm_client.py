"""Checks of a server with LiteLLM, which speaks five of its dialects: `python litellm_client.py URL`."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the client downloads prices when it is imported

import litellm

warnings.filterwarnings("ignore", module="pydantic")  # the client's own usage is not of the type that it declares
litellm.suppress_debug_info = True
URL = sys.argv[1]
CHAT_MODELS = {  # with the path of each one's API
    "openai/weft/demo": "/v1", "hosted_vllm/weft/demo": "/v1", "anthropic/weft/demo": "", "ollama_chat/weft/demo": "",
    "huggingface/tgi": ""}
COUNTING_MESSAGES = [{"role": "user", "content": "Count to five."}]
COUNTED = "1, 2, 3, 4, 5."
WEATHER_TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Tells the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
WEATHER_MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
PERSON_SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
                 "additionalProperties": False}


def complete(model: str, messages: list[dict[str, str]], **options: object) -> litellm.ModelResponse:
    options = {"temperature": 0, "max_retries": 0} | options
    return litellm.completion(model=model, messages=messages, api_base=URL + CHAT_MODELS.get(model, "/v1"),
                              api_key="none", **options)


def expect_error(exception_type: type[Exception], call: Callable[[], object]) -> str:
    """Return the message of the exception that the client raises."""
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def join_text(chunks: Iterable[litellm.ModelResponseStream]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def check_chats() -> None:
    """Check text, finish reason and usage, which are the same in a stream."""
    for model in CHAT_MODELS:
        answer = complete(model, COUNTING_MESSAGES)
        [choice] = answer.choices
        assert (choice.message.content, choice.finish_reason) == (COUNTED, "stop"), model
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 15), model
        chunks = list(complete(model, COUNTING_MESSAGES, stream=True, stream_options={"include_usage": True}))
        assert join_text(chunks) == COUNTED, model
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (12, 15), model
        assert complete(model, COUNTING_MESSAGES, max_tokens=2).choices[0].finish_reason == "length", model
    adapted, base = (complete(model, COUNTING_MESSAGES, max_tokens=8).choices[0].message.content
                     for model in ("openai/json", "openai/weft/demo"))
    assert adapted != base


def check_tools() -> None:
    """Check a call, the same call in a stream, and that an answer to its result comes."""
    for model in CHAT_MODELS:
        [choice] = complete(model, WEATHER_MESSAGES, tools=[WEATHER_TOOL]).choices
        [call] = choice.message.tool_calls
        assert (call.function.name, choice.finish_reason) == ("get_weather", "tool_calls"), model
        assert json.loads(call.function.arguments) == {"city": "Paris"}, model
        chunks = list(complete(model, WEATHER_MESSAGES, tools=[WEATHER_TOOL], stream=True))
        [streamed] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
        assert (streamed.function.name, json.loads(streamed.function.arguments)) == (
            "get_weather", {"city": "Paris"}), model
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "sunny"}
        assert complete(model, [*WEATHER_MESSAGES, choice.message, result], tools=[WEATHER_TOOL], max_tokens=40).choices


def check_structured_output() -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "person", "strict": True,
                                                              "schema": PERSON_SCHEMA}}
    for model in CHAT_MODELS:
        [choice] = complete(model, [{"role": "user", "content": "Who is it?"}], response_format=response_format,
                            max_tokens=60).choices
        assert json.loads(choice.message.content).keys() == {"name"}, model


def check_responses() -> None:
    """Check Responses: text, usage, the events of a stream, and a call."""
    options = {"model": "openai/weft/demo", "api_base": f"{URL}/v1", "api_key": "none", "temperature": 0}
    response = litellm.responses(input="Count to five.", **options)
    assert (response.status, response.output[0].content[0].text) == ("completed", COUNTED)
    assert (response.usage.input_tokens, response.usage.output_tokens) == (12, 15)
    events = list(litellm.responses(input="Count to five.", stream=True, **options))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == COUNTED
    assert [event.type for event in events[::len(events) - 1]] == ["response.created", "response.completed"]
    [call] = litellm.responses(input=WEATHER_MESSAGES, tools=[{"type": "function", **WEATHER_TOOL["function"]}],
                               **options).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    refusal = expect_error(litellm.BadRequestError,
                           lambda: litellm.responses(input="Hi", previous_response_id="resp_1", **options))
    assert "`previous_response_id` is given, but nothing is stored here" in refusal


def check_completions() -> None:
    options = {"model": "text-completion-openai/weft/demo", "prompt": "Once upon a time", "max_tokens": 12,
               "temperature": 0, "api_base": f"{URL}/v1", "api_key": "none"}
    [choice] = litellm.text_completion(**options).choices
    assert choice.finish_reason == "length"
    assert "".join(chunk.choices[0].text or "" for chunk in litellm.text_completion(stream=True, **options)) == (
        choice.text)


def check_embeddings() -> None:
    answer = litellm.embedding(model="openai/weft/demo", input=["Once upon a time", "hi"], api_base=f"{URL}/v1",
                               api_key="none")
    assert [len(row["embedding"]) for row in answer.data] == [256, 256]


def check_errors() -> None:
    """Check that the server's reason is in the client's exception, in each dialect, also where a stream was asked
    for."""
    for model in CHAT_MODELS:
        for is_stream in (False, True):
            message = expect_error(litellm.BadRequestError,
                                   lambda model=model, is_stream=is_stream: list(complete(
                                       model, COUNTING_MESSAGES, temperature=-1, stream=is_stream)))
            assert "`temperature` must be at least 0, got -1.0" in message, model
    long = expect_error(litellm.ContextWindowExceededError, lambda: complete(
        "openai/weft/demo", [{"role": "user", "content": "word " * 5000}]))
    assert "the prompt is too long: `messages` must have at most 2047 tokens" in long
    missing = expect_error(litellm.NotFoundError, lambda: complete("openai/org/nobody", COUNTING_MESSAGES))
    assert "this server has no model 'org/nobody': `model` may be weft/demo" in missing


for check in (check_chats, check_tools, check_structured_output, check_responses, check_completions, check_embeddings,
              check_errors):
    check()
    sys.stdout.write(f"litellm: {check.__name__}\n")
