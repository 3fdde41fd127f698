"""Cloud routes (/invocations, /vertex), which take the bodies of other routes."""

import json

import pytest
from support.metrics_page import get_failure_counts, parse_metrics
from support.servers.expected_streams import make_finished_timeline, make_text_events

from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed
from router.grammars.compiler_client import GrammarCompiler
from router.request import FinishReason
from router.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
LOW_LOGPROB_SCRIPT = [TokenEvent(97, "a", -9.0, False),
                      FinishedEvent(FinishReason.LENGTH, "a", 1, make_finished_timeline())]
HIGH_LOGPROB_SCRIPT = [TokenEvent(98, "b", -1.0, False),
                       FinishedEvent(FinishReason.LENGTH, "b", 1, make_finished_timeline())]


def post_json(post, path, *scripts, **body):
    status, _, text = post(path, *scripts, **body)
    assert status == 200, text
    return json.loads(text)


def test_sagemaker_route_answers_like_the_route_of_the_body(post):
    assert post_json(post, "/invocations", inputs="hi", parameters={"return_full_text": False}) == [
        {"generated_text": "weft"}]
    assert post_json(post, "/invocations", messages=MESSAGES)["choices"][0]["message"]["content"] == "weft"
    assert post_json(post, "/invocations", prompt="hi")["choices"][0]["text"] == "weft"


def test_sagemaker_route_can_stream(post):
    for body in ({"inputs": "hi"}, {"messages": MESSAGES}, {"prompt": "hi"}):
        status, headers, _ = post("/invocations", stream=True, **body)
        assert (status, headers["Content-Type"]) == (200, "text/event-stream")


@pytest.mark.parametrize("body", [{}, {"input": "x"}, {"inputs": None}])
def test_body_of_no_known_route_is_rejected(post, body):
    status, _, text = post("/invocations", **body)
    assert (status, json.loads(text)["error"]) == (422, "the body must have `inputs`, `messages` or `prompt`")


def test_vertex_returns_one_prediction_per_instance(post):
    response = post_json(post, "/vertex", make_text_events("warp"), make_text_events("weft"),
                         instances=[{"inputs": "a"}, {"messages": MESSAGES}])
    assert sorted(response["predictions"]) == ["warp", "weft"]


def test_vertex_instance_parameters_reach_the_requests(serve):
    async def scenario(client, engine):
        await client.post("/vertex", headers={"x-request-id": "mine"}, json={"instances": [
            {"inputs": "a", "parameters": {"max_new_tokens": 3, "stop": ["x"]}}, {"inputs": "b"}]})
        first, second = sorted(engine.requests, key=lambda request: request.id)
        assert (first.id, first.max_new_tokens, first.stop_strings) == ("mine", 3, ("x",))
        assert first.sampling.temperature == 0
        assert (second.id, second.sampling.temperature) == ("mine.1", 1.0)
    serve(scenario)


def test_grammar_of_a_vertex_instance_is_that_of_the_whole_output(serve, monkeypatch):
    """Behind reasoning stand calls or a text in the format, as in a chat."""
    grammars = []

    async def compile_grammar(_, grammar, tenant_name):
        grammars.append(grammar)
        return grammar.source
    monkeypatch.setattr(GrammarCompiler, "compile", compile_grammar)
    tool = {"type": "function", "function": {"name": "paint"}}
    chat = {"messages": MESSAGES, "response_format": {"type": "json_object"}}

    async def scenario(client, engine):
        instances = [chat, chat | {"tools": [tool]}, chat | {"tools": [tool], "tool_choice": "required"}]
        answer = await client.post("/vertex", json={"instances": instances})
        assert (await answer.json())["predictions"] == ["{}"] * 3
        for instance in instances:
            await client.post("/v1/chat/completions", json=instance)
        assert all(request.grammar is not None for request in engine.requests)
    serve(scenario, *(make_text_events("{}") for _ in range(6)), grammars=True,
          template=ChatTemplate("{{ messages }}<think><tool_call>", {}))
    assert [grammar.kind for grammar in grammars] == ["output"] * 6
    assert [grammar.source for grammar in grammars[:3]] == [grammar.source for grammar in grammars[3:]]
    assert ["</think>" in grammar.source for grammar in grammars[:3]] == [True] * 3
    assert ["paint" in grammar.source for grammar in grammars[:3]] == [False, True, True]


def test_vertex_best_of_returns_the_best_text(post):
    body = {"instances": [{"inputs": "a", "parameters": {"best_of": 2, "do_sample": True}}]}
    assert post_json(post, "/vertex", LOW_LOGPROB_SCRIPT, HIGH_LOGPROB_SCRIPT, **body) == {"predictions": ["b"]}


@pytest.mark.parametrize(("instances", "words"), [
    ([], "instances"), ([{"inputs": "a"}] * 5, "at most 4 (--max-client-batch-size), got 5"),
    ([{"inputs": ""}], "`inputs` must not be an empty string"), ([{"input": "x"}], "instances"),
    ([{"inputs": "a", "parameters": {"top_p": 5}}], "`top_p`")])
def test_invalid_vertex_instance_is_rejected(post, instances, words):
    status, _, text = post("/vertex", instances=instances)
    assert status == 422
    assert words in json.loads(text)["error"]


def test_failure_of_one_instance_fails_the_whole_request(serve):
    async def scenario(client, engine):
        answer = await client.post("/vertex", json={"instances": [{"inputs": "a"}, {"inputs": "b"}]})
        assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert len(engine.disconnected_requests) == 1
    serve(scenario, [FailedEvent(GenerationFailed("broken"))], [])


def test_nothing_is_generated_if_one_instance_is_invalid(serve):
    """Regression: the first instance was already submitted when the second was rejected."""
    async def scenario(client, engine):
        answer = await client.post("/vertex", json={"instances": [{"inputs": "a"}, {"inputs": ""}]})
        assert (answer.status, engine.requests) == (422, [])
    serve(scenario)


@pytest.mark.parametrize("content", ["{}", "{", '{"inputs": 5}'])
def test_rejected_invocation_is_counted_once(serve, content):
    """Regression: such a request was answered but not counted in the metrics."""
    async def scenario(client, engine):
        answer = await client.post("/invocations", data=content, headers={"Content-Type": "application/json"})
        assert (answer.status, "x-request-id" in answer.headers) == (400 if content == "{" else 422, True)
        samples = parse_metrics(engine.render_metrics_page())
        assert (samples["tgi_request_count"], get_failure_counts(samples)) == (1, {"validation": 1})
    serve(scenario)


def test_vertex_leaves_stop_strings_of_chats_out_and_refuses_several_choices(post):
    script = make_text_events("ab", FinishReason.STOP_STRING)
    body = {"messages": [{"role": "user", "content": "hi"}], "stop": "b", "tools": []}
    assert json.loads(post("/vertex", script, instances=[body])[2]) == {"predictions": ["a"]}
    kept = body | {"include_stop_str_in_output": True}
    assert json.loads(post("/vertex", script, instances=[kept])[2]) == {"predictions": ["ab"]}
    status, _, text = post("/vertex", instances=[body | {"n": 2}])
    assert (status, "`n` must be 1 in `instances`, got 2" in text) == (422, True)
