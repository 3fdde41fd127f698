"""Cloud routes (/invocations, /vertex), which take the bodies of other routes."""

import json

import pytest
from support.expected_streams import lived, said
from support.metrics_page import failures, read

from router.engine.stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed
from router.request import FinishReason

HELLO = [{"role": "user", "content": "hi"}]
LOW = [TokenEvent(97, "a", -9.0, False), FinishedEvent(FinishReason.LENGTH, "a", 1, lived())]
HIGH = [TokenEvent(98, "b", -1.0, False), FinishedEvent(FinishReason.LENGTH, "b", 1, lived())]


def answered(post, path, *scripts, **body):
    status, _, text = post(path, *scripts, **body)
    assert status == 200, text
    return json.loads(text)


def test_sagemaker_is_answered_as_the_route_of_the_body_answers(post):
    assert answered(post, "/invocations", inputs="hi", parameters={"return_full_text": False}) == [
        {"generated_text": "weft"}]
    assert answered(post, "/invocations", messages=HELLO)["choices"][0]["message"]["content"] == "weft"
    assert answered(post, "/invocations", prompt="hi")["choices"][0]["text"] == "weft"


def test_sagemaker_may_ask_for_streams(post):
    for body in ({"inputs": "hi"}, {"messages": HELLO}, {"prompt": "hi"}):
        status, headers, _ = post("/invocations", stream=True, **body)
        assert (status, headers["Content-Type"]) == (200, "text/event-stream")


@pytest.mark.parametrize("body", [{}, {"input": "x"}, {"inputs": None}])
def test_a_body_of_no_route_is_refused(post, body):
    status, _, text = post("/invocations", **body)
    assert (status, json.loads(text)["error"]) == (422, "the body must have `inputs`, `messages` or `prompt`")


def test_vertex_is_told_a_text_for_each_instance_in_their_order(post):
    told = answered(post, "/vertex", said("warp"), said("weft"), instances=[{"inputs": "a"}, {"messages": HELLO}])
    assert sorted(told["predictions"]) == ["warp", "weft"]


def test_parameters_of_an_instance_count(serve):
    async def scenario(client, engine):
        await client.post("/vertex", headers={"x-request-id": "mine"}, json={"instances": [
            {"inputs": "a", "parameters": {"max_new_tokens": 3, "stop": ["x"]}}, {"inputs": "b"}]})
        first, second = sorted(engine.requests, key=lambda request: request.id)
        assert (first.id, first.max_new_tokens, first.stop_strings) == ("mine", 3, ("x",))
        assert first.sampling.temperature == 0
        assert (second.id, second.sampling.temperature) == ("mine.1", 1.0)
    serve(scenario)


def test_the_best_of_several_is_told(post):
    body = {"instances": [{"inputs": "a", "parameters": {"best_of": 2, "do_sample": True}}]}
    assert answered(post, "/vertex", LOW, HIGH, **body) == {"predictions": ["b"]}


@pytest.mark.parametrize(("instances", "words"), [
    ([], "instances"), ([{"inputs": "a"}] * 5, "at most 4 (--max-client-batch-size), got 5"),
    ([{"inputs": ""}], "`inputs` must not be an empty string"), ([{"input": "x"}], "instances"),
    ([{"inputs": "a", "parameters": {"top_p": 5}}], "`top_p`")])
def test_what_is_wrong_with_an_instance_is_told(post, instances, words):
    status, _, text = post("/vertex", instances=instances)
    assert status == 422
    assert words in json.loads(text)["error"]


def test_an_instance_that_fails_fails_all(serve):
    async def scenario(client, engine):
        answer = await client.post("/vertex", json={"instances": [{"inputs": "a"}, {"inputs": "b"}]})
        assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert len(engine.left) == 1
    serve(scenario, [FailedEvent(GenerationFailed("broken"))], [])


def test_nothing_is_generated_for_instances_of_which_one_is_wrong(serve):
    """Regression: the first instance was already submitted when the second was rejected."""
    async def scenario(client, engine):
        answer = await client.post("/vertex", json={"instances": [{"inputs": "a"}, {"inputs": ""}]})
        assert (answer.status, engine.requests) == (422, [])
    serve(scenario)


@pytest.mark.parametrize("content", ["{}", "{", '{"inputs": 5}'])
def test_a_body_of_no_route_counts_as_a_request_once(serve, content):
    """Regression: such a request was answered but not counted in the metrics."""
    async def scenario(client, engine):
        answer = await client.post("/invocations", data=content, headers={"Content-Type": "application/json"})
        assert (answer.status, "x-request-id" in answer.headers) == (400 if content == "{" else 422, True)
        samples = read(engine.metrics())
        assert (samples["tgi_request_count"], failures(samples)) == (1, {"validation": 1})
    serve(scenario)
