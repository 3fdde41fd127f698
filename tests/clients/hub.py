"""Checks of a server with huggingface_hub's InferenceClient: `python hub.py URL`."""

import sys
from collections.abc import Callable

from huggingface_hub import InferenceClient
from huggingface_hub.errors import OverloadedError, TextGenerationError, ValidationError

CLIENT = InferenceClient(base_url=sys.argv[1])
COUNTING_MESSAGES = [{"role": "user", "content": "Count to five."}]


def expect_error_message(exception_type: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def check_text_generation() -> None:
    text = CLIENT.text_generation("Once upon a time", max_new_tokens=20, return_full_text=False)
    full = CLIENT.text_generation("Once upon a time", max_new_tokens=20, return_full_text=True)
    assert full == f"Once upon a time{text}"
    assert len(text) > 20


def check_details() -> None:
    output = CLIENT.text_generation("Once upon a time", max_new_tokens=8, details=True, return_full_text=False,
                                    decoder_input_details=True, top_n_tokens=2, do_sample=True, seed=5)
    assert output.details.finish_reason == "length"
    assert output.details.generated_tokens == len(output.details.tokens) == 8
    assert output.details.seed == 5
    assert len(output.details.prefill) > 2
    assert all(len(tops) == 2 for tops in output.details.top_tokens)


def check_streams() -> None:
    pieces = list(CLIENT.text_generation("Once upon a time", max_new_tokens=20, stream=True, return_full_text=False))
    assert "".join(pieces) == CLIENT.text_generation("Once upon a time", max_new_tokens=20, return_full_text=False)
    *_, last = CLIENT.text_generation("Once upon a time", max_new_tokens=5, stream=True, details=True,
                                      return_full_text=False)
    assert last.details.generated_tokens == 5
    assert last.generated_text


def check_chats() -> None:
    answer = CLIENT.chat_completion(COUNTING_MESSAGES, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == "1, 2, 3, 4, 5."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    chunks = list(CLIENT.chat_completion(COUNTING_MESSAGES, temperature=0, stream=True,
                                         stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "1, 2, 3, 4, 5."
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def check_tool_calls() -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    answer = CLIENT.chat_completion([{"role": "user", "content": "What is the weather in Paris?"}], tools=[tool],
                                    tool_choice="auto", temperature=0, max_tokens=80)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def check_errors() -> None:
    assert "top_p" in expect_error_message(ValidationError, lambda: CLIENT.text_generation("x", top_p=5.0))
    assert "temperature" in expect_error_message(
        TextGenerationError, lambda: list(CLIENT.text_generation("x", temperature=-1.0, stream=True)))
    open_streams = [CLIENT.text_generation("Once upon a time", max_new_tokens=900, stream=True, do_sample=True,
                                           temperature=1.5) for _ in range(4)]
    for stream in open_streams:
        next(iter(stream))
    expect_error_message(OverloadedError, lambda: CLIENT.text_generation("x", max_new_tokens=5))
    for stream in open_streams:
        stream.close()


for check in (check_text_generation, check_details, check_streams, check_chats, check_tool_calls, check_errors):
    check()
    sys.stdout.write(f"huggingface_hub: {check.__name__}\n")
