"""OpenAI's completions route over a scripted engine."""

import json

import pytest
from support.expected_streams import lived, said

from router.config import RouterConfig
from router.engine.stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed, NotReady, Overloaded
from router.request import FinishReason

PATH = "/v1/completions"
BROKEN = [TokenEvent(97, "a", -1.0, False), FailedEvent(GenerationFailed("broken"))]


def completed(post, *scripts, **given):
    status, headers, text = post(PATH, *scripts, **{"prompt": "hi"} | given)
    assert status == 200, text
    return headers, json.loads(text)


def streamed(post, *scripts, **given):
    status, headers, text = post(PATH, *scripts, **{"prompt": "hi", "stream": True} | given)
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    *lines, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def told(chunks, index):
    return [chunk["choices"][0] for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index]


def test_a_text_is_gone_on_with(post):
    _, answer = completed(post, model="whatever")
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer.pop("system_fingerprint").endswith("-native")
    assert answer == {
        "object": "text_completion", "model": "loom",
        "choices": [{"index": 0, "text": "weft", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}}


def test_several_texts_are_answered_in_their_order_and_counted_together(post):
    headers, answer = completed(post, said("warp"), said("w", FinishReason.STOP_STRING), prompt=["hello", "a"])
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]] == [
        (0, "warp", "length"), (1, "w", "stop")]
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 11}
    assert [headers[f"x-{name}"] for name in ("prompt-tokens", "generated-tokens", "compute-characters")] == [
        "6", "5", "6"]
    assert (headers["x-queue-time"], "x-compute-time" in headers) == ("500", True)


def test_what_is_asked_for_reaches_the_requests(serve):
    async def scenario(client, engine):
        await client.post(PATH, headers={"x-request-id": "mine"}, json={
            "prompt": ["a", "b"], "max_tokens": 9, "temperature": 0.5, "top_p": 1, "seed": 5, "stop": "x",
            "frequency_penalty": 0.25, "presence_penalty": -0.5, "repetition_penalty": 1.5, "n": 1, "logprobs": None,
            "user": "someone"})
        first, second = engine.requests
        assert [request.id for request in engine.requests] == ["mine", "mine.1"]
        assert (first.prompt, second.prompt) == ((97,), (98,))
        assert (first.max_new_tokens, first.stop_strings, first.key) == (9, ("x",), second.key)
        sampling = first.sampling
        assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.5, 0.0, 1.5)
        assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.25, -0.5)
    serve(scenario)


def test_without_a_temperature_is_sampled_and_with_none_at_all_is_not(serve):
    async def scenario(client, engine):
        for body in ({}, {"temperature": 0, "top_p": 0.9}):
            await client.post(PATH, json={"prompt": "a", **body})
        assert [request.sampling.temperature for request in engine.requests] == [1.0, 0.0]
    serve(scenario)


@pytest.mark.parametrize(("body", "param", "words"), [
    ({"suffix": "x"}, "suffix", "`suffix`"),
    ({"prompt": ["a"] * 5}, "prompt", "at most 4 texts (--max-client-batch-size), got 5"),
    ({"n": 2}, "n", "`n` must be 1, got 2"), ({"best_of": 3}, "best_of", "`best_of` must be 1"),
    ({"echo": True}, "echo", "`echo`"), ({"logprobs": 1}, "logprobs", "`logprobs`"),
    ({"prompt": []}, "prompt", "`prompt`"), ({"prompt": ["a", ""]}, "prompt", "`prompt` must not be an empty"),
    ({"prompt": [1, 2]}, "prompt", "`prompt.0`"), ({"max_tokens": 0}, "max_tokens", "`max_tokens` must be"),
    ({"max_tokens": -1}, "max_tokens", "max_tokens"), ({"temperature": -1}, "temperature", "`temperature`"),
    ({"stop": ["a"] * 5}, "stop", "`stop`"), ({"stream_options": 5}, "stream_options", "stream_options"),
    ({"stop": ["a" * 1025]}, "stop", "a string in `stop`"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_named_with_its_status(post, body, param, words, stream):
    status, _, text = post(PATH, **{"prompt": "hi", "stream": stream} | body)
    error = json.loads(text)["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]


@pytest.mark.parametrize(("error", "status"), [(Overloaded("full"), 429), (NotReady("lost"), 503)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_has_a_status_on_streams_too(serve, error, status, stream):
    async def scenario(client, engine):
        engine.refusals = [error]
        answer = await client.post(PATH, json={"prompt": "a", "stream": stream})
        assert (answer.status, "Retry-After" in answer.headers) == (status, True)
    serve(scenario)


def test_one_that_fails_fails_all(serve):
    async def scenario(client, engine):
        answer = await client.post(PATH, json={"prompt": ["a", "b"]})
        assert (answer.status, (await answer.json())["error"]["type"]) == (500, "server_error")
        assert len(engine.left) == 1
    serve(scenario, BROKEN, [])


def test_a_stream_has_a_chunk_for_each_token_of_each_text(post):
    chunks = streamed(post, said("warp"), said("ab", FinishReason.END_TOKEN), prompt=["hello", "b"])
    for index, (text, reason) in enumerate((("warp", "length"), ("ab", "stop"))):
        choices = told(chunks, index)
        assert [choice["text"] for choice in choices] == list(text)
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(text) - 1) + [reason]
    ends = [chunk["usage"] for chunk in chunks if chunk["usage"]]
    assert sorted(end["total_tokens"] for end in ends) == [3, 9]
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "text_completion", "loom")}


def test_usage_of_all_texts_comes_at_the_end_if_it_is_asked_for(post):
    *_, last = streamed(post, said("warp"), said("ab"), prompt=["hello", "b"], stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == (
        [], {"prompt_tokens": 6, "completion_tokens": 6, "total_tokens": 12})


def test_a_stream_ends_with_the_failure_of_one_text(post):
    _, _, text = post(PATH, BROKEN, [], prompt=["a", "b"], stream=True)
    first, error, done, rest = text.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "a"
    assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
    assert (done, rest) == ("data: [DONE]", "")


def test_a_client_that_leaves_cancels_all_texts(serve):
    async def scenario(client, engine):
        answer = await client.post(PATH, json={"prompt": ["a", "b"], "stream": True})
        answer.close()
        await engine.left_alone.wait()
        assert len(engine.left) == 2
    serve(scenario, [], [])


def test_time_that_runs_out_cuts_a_text_off(post):
    script = [TokenEvent(97, "a", -1.0, False), FinishedEvent(FinishReason.TIMEOUT, "a", 1, lived())]
    assert completed(post, script)[1]["choices"][0]["finish_reason"] == "length"


def test_more_texts_are_taken_where_the_server_is_told_to(post):
    config = RouterConfig(max_client_batch_size=6)
    assert len(completed(post, prompt=["a"] * 6, config=config)[1]["choices"]) == 6


TGI = RouterConfig(compat="tgi")


def test_oddities_of_tgi_are_kept_where_they_are_wanted(post):
    _, answer = completed(post, said("ab", FinishReason.STOP_STRING), config=TGI, n=3, echo=True, logprobs=2)
    assert answer["choices"][0]["finish_reason"] == "stop_sequence"
    chunks = streamed(post, said("ab", FinishReason.END_TOKEN), config=TGI)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["", "eos_token"]
