"""Checks of a server with Ollama's Python client: `python ollama_client.py URL`."""

import asyncio
import json
import sys
from collections.abc import Callable
from math import isclose

import ollama

CLIENT = ollama.Client(host=sys.argv[1])
MODEL = "weft/demo"
COUNTING_MESSAGES = [{"role": "user", "content": "Count to five."}]
COUNTED = "1, 2, 3, 4, 5."
GREEDY = {"temperature": 0}


def get_weather(city: str) -> str:
    """Tell the weather in a city.

    Args:
        city: Name of the city.
    """
    return f"sunny in {city}"


def expect_error(call: Callable[[], object]) -> ollama.ResponseError:
    try:
        call()
    except ollama.ResponseError as error:
        return error
    raise AssertionError("there was no ResponseError")


def check_chats() -> None:
    answer = CLIENT.chat(MODEL, COUNTING_MESSAGES, options=GREEDY)
    assert (answer.model, answer.message.role, answer.message.content) == (MODEL, "assistant", COUNTED)
    assert (answer.done, answer.done_reason, answer.message.tool_calls) == (True, "stop", None)
    assert answer.eval_count > 5
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration > 0
    *pieces, last = CLIENT.chat(f"{MODEL}:latest", COUNTING_MESSAGES, stream=True, options=GREEDY)
    assert "".join(piece.message.content for piece in pieces) == COUNTED
    assert not any(piece.done for piece in pieces)
    assert (last.done, last.done_reason, last.eval_count) == (True, "stop", answer.eval_count)
    short = CLIENT.chat(MODEL, COUNTING_MESSAGES, options={**GREEDY, "num_predict": 2, "num_ctx": 512}, keep_alive="5m")
    assert (short.done_reason, short.eval_count) == ("length", 2)
    stopped = CLIENT.chat(MODEL, COUNTING_MESSAGES, options={**GREEDY, "stop": ["3"]})
    assert (stopped.message.content, stopped.done_reason) == ("1, 2, ", "stop")


def check_async_chats() -> None:
    async def count() -> str:
        stream = await ollama.AsyncClient(host=sys.argv[1]).chat(MODEL, COUNTING_MESSAGES, stream=True, options=GREEDY)
        return "".join([piece.message.content async for piece in stream])
    assert asyncio.run(count()) == COUNTED


def check_generations() -> None:
    answer = CLIENT.generate(MODEL, "Count to five.", options=GREEDY)
    assert (answer.response, answer.done_reason) == (COUNTED, "stop")
    raw = CLIENT.generate(MODEL, "Once upon a time", raw=True, options={**GREEDY, "num_predict": 12})
    pieces = list(CLIENT.generate(MODEL, "Once upon a time", raw=True, options={**GREEDY, "num_predict": 12},
                                  stream=True))
    assert raw.eval_count == 12
    assert raw.response == "".join(piece.response for piece in pieces) != answer.response
    assert CLIENT.generate(MODEL).done_reason == "load"


def check_logprobs() -> None:
    answer = CLIENT.chat(MODEL, COUNTING_MESSAGES, options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == answer.eval_count
    assert all(len(entry.top_logprobs) == 2 for entry in answer.logprobs)
    pieces = CLIENT.chat(MODEL, COUNTING_MESSAGES, options=GREEDY, logprobs=True, stream=True)
    streamed = [entry.token for piece in pieces for entry in piece.logprobs or ()]
    assert streamed == [entry.token for entry in answer.logprobs]


def check_tool_calls() -> None:
    """Check calls of a function that the client describes itself."""
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = CLIENT.chat(MODEL, messages, tools=[get_weather], options=GREEDY)
    pieces = list(CLIENT.chat(MODEL, messages, tools=[get_weather], options=GREEDY, stream=True))
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert calls == [*(answer.message.tool_calls or ())]
    assert "".join(piece.message.content for piece in pieces) == answer.message.content
    for call in calls:
        assert (call.function.name, {*call.function.arguments}) == ("get_weather", {"city"})
        result = {"role": "tool", "tool_name": call.function.name, "content": get_weather(**call.function.arguments)}
        assert CLIENT.chat(MODEL, [*messages, answer.message, result], tools=[get_weather], options=GREEDY).done
    sys.stdout.write(f"ollama: {len(calls)} calls\n")


def check_formats() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
              "additionalProperties": False}
    answer = CLIENT.chat(MODEL, [{"role": "user", "content": "Who is it?"}], format=schema,
                         options={**GREEDY, "num_predict": 60})
    assert json.loads(answer.message.content).keys() == {"name"}
    refused = expect_error(lambda: CLIENT.chat(MODEL, COUNTING_MESSAGES, format={"not": {}}))
    assert (refused.status_code, '"not"' in refused.error) == (400, True)


def check_embeddings() -> None:
    one, other = CLIENT.embed(MODEL, ["Once upon a time", "The Story of"]).embeddings
    assert isclose(sum(value * value for value in one), 1, abs_tol=1e-5)
    assert one != other
    assert len(CLIENT.embed(MODEL, "Once upon a time", dimensions=8).embeddings[0]) == 8
    assert len(CLIENT.embeddings(MODEL, "Once upon a time").embedding) == len(one)
    refused = expect_error(lambda: CLIENT.embed(MODEL, "x", dimensions=100_000))
    assert (refused.status_code, "`dimensions` must be at most" in refused.error) == (400, True)


def check_models() -> None:
    listed, running = CLIENT.list().models[0], CLIENT.ps().models[0]
    assert listed.model == running.model == MODEL
    assert len(listed.digest) == 64
    shown = CLIENT.show(MODEL)
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == running.context_length
    assert {"completion", "embedding"} <= {*shown.capabilities}
    assert shown.template


def check_errors() -> None:
    missing = expect_error(lambda: CLIENT.chat("org/nobody", COUNTING_MESSAGES))
    assert (missing.status_code, missing.error.partition(":")[0]) == (404, "model 'org/nobody' not found")
    streamed = expect_error(lambda: list(CLIENT.generate("org/nobody", "hi", stream=True)))
    assert (streamed.status_code, streamed.error) == (missing.status_code, missing.error)
    for call in (lambda: CLIENT.pull("llama3"), lambda: list(CLIENT.pull("llama3", stream=True)),
                 lambda: CLIENT.delete(MODEL), lambda: CLIENT.copy(MODEL, "x"), lambda: CLIENT.push(MODEL),
                 lambda: CLIENT.create("x", from_=MODEL)):
        refused = expect_error(call)
        assert (refused.status_code, "is not served: this server has weft/demo" in refused.error) == (501, True)
    image = expect_error(lambda: CLIENT.chat(MODEL, [{"role": "user", "content": "x", "images": ["aGk="]}]))
    assert image.error == "`images` is given, but images are not served; leave it out"


for check in (check_chats, check_async_chats, check_generations, check_logprobs, check_tool_calls, check_formats,
              check_embeddings, check_models, check_errors):
    check()
    sys.stdout.write(f"ollama: {check.__name__}\n")
