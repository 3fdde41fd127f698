"""Checks of a server with huggingface_hub's InferenceClient: `python hub.py URL`."""

import sys
from collections.abc import Callable

from huggingface_hub import InferenceClient
from huggingface_hub.errors import OverloadedError, TextGenerationError, ValidationError

CLIENT = InferenceClient(base_url=sys.argv[1])
HELLO = [{"role": "user", "content": "Count to five."}]


def refused(kind: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"there was no {kind.__name__}")


def texts() -> None:
    text = CLIENT.text_generation("Once upon a time", max_new_tokens=20, return_full_text=False)
    full = CLIENT.text_generation("Once upon a time", max_new_tokens=20, return_full_text=True)
    assert full == f"Once upon a time{text}"
    assert len(text) > 20


def details() -> None:
    told = CLIENT.text_generation("Once upon a time", max_new_tokens=8, details=True, return_full_text=False,
                                  decoder_input_details=True, top_n_tokens=2, do_sample=True, seed=5)
    assert told.details.finish_reason == "length"
    assert told.details.generated_tokens == len(told.details.tokens) == 8
    assert told.details.seed == 5
    assert len(told.details.prefill) > 2
    assert all(len(tops) == 2 for tops in told.details.top_tokens)


def streams() -> None:
    pieces = list(CLIENT.text_generation("Once upon a time", max_new_tokens=20, stream=True, return_full_text=False))
    assert "".join(pieces) == CLIENT.text_generation("Once upon a time", max_new_tokens=20, return_full_text=False)
    *_, last = CLIENT.text_generation("Once upon a time", max_new_tokens=5, stream=True, details=True,
                                      return_full_text=False)
    assert last.details.generated_tokens == 5
    assert last.generated_text


def chats() -> None:
    answer = CLIENT.chat_completion(HELLO, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == "1, 2, 3, 4, 5."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    chunks = list(CLIENT.chat_completion(HELLO, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "1, 2, 3, 4, 5."
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def tools() -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    answer = CLIENT.chat_completion([{"role": "user", "content": "What is the weather in Paris?"}], tools=[tool],
                                    tool_choice="auto", temperature=0, max_tokens=80)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def errors() -> None:
    assert "top_p" in refused(ValidationError, lambda: CLIENT.text_generation("x", top_p=5.0))
    assert "temperature" in refused(
        TextGenerationError, lambda: list(CLIENT.text_generation("x", temperature=-1.0, stream=True)))
    kept = [CLIENT.text_generation("Once upon a time", max_new_tokens=900, stream=True, do_sample=True, temperature=1.5)
            for _ in range(4)]
    for stream in kept:
        next(iter(stream))
    refused(OverloadedError, lambda: CLIENT.text_generation("x", max_new_tokens=5))
    for stream in kept:
        stream.close()


for check in (texts, details, streams, chats, tools, errors):
    check()
    sys.stdout.write(f"huggingface_hub: {check.__name__}\n")
