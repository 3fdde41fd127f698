"""Checks of a server with OpenAI's Python client: `python openai_python.py URL`."""

import json
import sys
from collections.abc import Callable

import openai

CLIENT = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
COUNTING_MESSAGES = [{"role": "user", "content": "Count to five."}]
WEATHER_TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Tells the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
WEATHER_MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]


def expect_server_error(exception_type: type[openai.APIStatusError],
                        call: Callable[[], object]) -> openai.APIStatusError:
    """Return the exception that the client raises; its message contains the server's reason."""
    error = expect_error(exception_type, call)
    assert type(error) is exception_type
    assert error.body["message"] in error.message
    return error


def expect_error(exception_type: type[openai.APIStatusError], call: Callable[[], object]) -> openai.APIStatusError:
    try:
        call()
    except exception_type as error:
        return error
    raise AssertionError(f"there was no {exception_type.__name__}")


def check_models() -> None:
    assert [model.id for model in CLIENT.models.list()] == ["weft/demo", "json", "kjv", "pirate", "shout"]
    assert CLIENT.models.retrieve("weft/demo").id == "weft/demo"


def check_chats() -> None:
    answer = CLIENT.chat.completions.create(model="weft/demo", messages=COUNTING_MESSAGES, temperature=0, logprobs=True,
                                            top_logprobs=2)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("1, 2, 3, 4, 5.", "stop")
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert answer._request_id
    chunks = list(CLIENT.chat.completions.create(model="weft/demo", messages=COUNTING_MESSAGES, temperature=0,
                                                 stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "1, 2, 3, 4, 5."
    assert chunks[-1].usage == answer.usage


def check_completions() -> None:
    answer = CLIENT.completions.create(model="weft/demo", prompt=["Once upon a time", "The Story of"], max_tokens=12,
                                       temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    chunks = list(CLIENT.completions.create(model="weft/demo", prompt="Once upon a time", max_tokens=12, temperature=0,
                                            stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def check_choices() -> None:
    """Check `n`: one choice is what `n=1` returns with the same seed, and streams add up to the same."""
    def create(**options: object) -> object:
        return CLIENT.completions.create(model="weft/demo", prompt="Once upon a time", max_tokens=12, temperature=1,
                                         seed=7, extra_body={"ignore_eos": True}, **options)
    answer = create(n=3)
    texts = [choice.text for choice in answer.choices]
    assert len({*texts}) > 1
    assert (texts[0], answer.usage.completion_tokens) == (create().choices[0].text, 36)
    streamed = ["", "", ""]
    for chunk in create(n=3, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    chats = CLIENT.chat.completions.create(model="weft/demo", messages=COUNTING_MESSAGES, n=2, temperature=0).choices
    assert [choice.index for choice in chats] == [0, 1]
    assert {choice.message.content for choice in chats} == {"1, 2, 3, 4, 5."}


def check_sampling_fields() -> None:
    """Check `logit_bias`, 20 alternatives, and vLLM's fields in `extra_body`."""
    def create(max_tokens: int = 5, **options: object) -> object:
        [choice] = CLIENT.chat.completions.create(model="weft/demo", messages=COUNTING_MESSAGES, temperature=0,
                                                  max_tokens=max_tokens, **options).choices
        return choice
    [first, *_] = create(logprobs=True, top_logprobs=20).logprobs.content
    assert (first.token, len(first.top_logprobs)) == ("1", 20)
    three = "25"  # the id of the token "3"
    assert create(logit_bias={three: 100}).message.content == "33333"
    assert create(extra_body={"allowed_token_ids": [int(three)]}).message.content == "33333"
    for stop in ({"extra_body": {"stop_token_ids": [int(three)]}}, {"stop": "3"}):
        stopped = create(20, **stop)
        assert (stopped.message.content, stopped.finish_reason) == ("1, 2, ", "stop")
    invalid = expect_server_error(openai.BadRequestError, lambda: create(logit_bias={three: 101}))
    assert (invalid.param, "at most 100, got 101" in str(invalid)) == ("logit_bias", True)


def check_tool_calls() -> None:
    answer = CLIENT.chat.completions.create(model="weft/demo", messages=WEATHER_MESSAGES, tools=[WEATHER_TOOL],
                                            temperature=0)
    [call] = answer.choices[0].message.tool_calls
    assert (call.function.name, answer.choices[0].finish_reason) == ("get_weather", "tool_calls")
    assert json.loads(call.function.arguments).keys() == {"city"}
    with CLIENT.chat.completions.stream(model="weft/demo", messages=WEATHER_MESSAGES, tools=[WEATHER_TOOL],
                                        temperature=0) as stream:
        streamed_call = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert (streamed_call.name, streamed_call.arguments) == (call.function.name, call.function.arguments)


def check_embeddings() -> None:
    """Check embeddings as floats and as base64, which the client requests by default and decodes itself."""
    create = CLIENT.embeddings.create
    some = create(model="weft/demo", input=["Once upon a time", "The Story of"], encoding_format="float")
    assert [row.index for row in some.data] == [0, 1]
    assert some.usage.total_tokens == some.usage.prompt_tokens > 2
    vectors = [row.embedding for row in some.data]
    for others in (create(model="weft/demo", input=["Once upon a time", "The Story of"]).data,
                   [create(model="weft/demo", input=text).data[0] for text in ("Once upon a time", "The Story of")]):
        assert all(are_close(*pair) for pair in zip(vectors, (row.embedding for row in others), strict=True))
    assert len(create(model="weft/demo", input="Once upon a time", dimensions=8).data[0].embedding) == 8
    many = create(model="weft/demo", input=[f"thread {number}" for number in range(300)]).data
    assert [row.index for row in many] == [*range(300)]
    alone = create(model="weft/demo", input="thread 299").data[0].embedding
    assert are_close(many[299].embedding, alone)
    assert not are_close(many[0].embedding, alone)
    assert "at most 2048 texts" in str(expect_server_error(openai.BadRequestError,
                                                           lambda: create(model="weft/demo", input=["x"] * 2049)))


def are_close(first: list[float], second: list[float]) -> bool:
    return len(first) == len(second) and all(abs(a - b) < 1e-5 for a, b in zip(first, second, strict=True))


def check_errors() -> None:
    chat = CLIENT.chat.completions.create
    invalid = expect_server_error(openai.BadRequestError,
                                  lambda: chat(model="weft/demo", messages=COUNTING_MESSAGES, max_tokens=0))
    assert "`max_tokens` must be at least 1, got 0" in str(invalid)
    assert (invalid.type, invalid.param, invalid.code) == ("invalid_request_error", "max_tokens", None)
    assert expect_server_error(openai.BadRequestError, lambda: chat(model="weft/demo", messages=[])).param == "messages"
    long = expect_server_error(openai.BadRequestError,
                               lambda: CLIENT.completions.create(model="weft/demo", prompt="word " * 5000))
    assert (long.code, long.param) == ("context_length_exceeded", "prompt")
    missing = expect_server_error(openai.NotFoundError,
                                  lambda: chat(model="org/nobody", messages=COUNTING_MESSAGES, stream=True))
    assert (missing.code, missing.param, "org/nobody" in str(missing)) == ("model_not_found", "model", True)
    unknown = expect_server_error(openai.NotFoundError, lambda: CLIENT.models.retrieve("a/b/c"))
    assert (unknown.code, unknown.param) == ("model_not_found", "model")
    assert expect_server_error(openai.NotFoundError, CLIENT.batches.list).code == "unknown_url"
    open_streams = [chat(model="weft/demo", messages=COUNTING_MESSAGES, stream=True, temperature=1.9, max_tokens=900)
                    for _ in range(4)]
    full = expect_server_error(openai.RateLimitError, lambda: chat(model="weft/demo", messages=COUNTING_MESSAGES))
    assert (full.code, int(full.response.headers["retry-after"]) >= 1) == ("rate_limit_exceeded", True)
    for stream in open_streams:
        stream.close()


for check in (check_models, check_chats, check_completions, check_choices, check_sampling_fields, check_tool_calls,
              check_embeddings, check_errors):
    check()
    sys.stdout.write(f"openai: {check.__name__}\n")
