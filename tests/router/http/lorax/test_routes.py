"""LoRAX's routes over a scripted engine."""

import json
import re

import pytest
from support.servers.expected_streams import make_finished_timeline, make_text_events
from support.servers.fake_adapter_store import FakeAdapterStore

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed
from router.request import FinishReason
from router.text.chat_template import ChatTemplate, simulated_model_template

LORAX_CONFIG = RouterConfig(compat="lorax")
PRELOADED_CONFIG = RouterConfig(compat="lorax", preloaded_adapter_ids=("mine=a",), adapter_source="local")
MERGED_ADAPTERS = {"ids": ["a", "b"], "weights": [0.5, 0.5]}


def post_and_get_requests(serve, *bodies, headers=None, **settings):
    """Post the bodies and return the engine's requests."""
    async def scenario(client, engine):
        for body in bodies:
            answer = await client.post("/generate", json={"inputs": "hi"} | body, headers=headers)
            assert answer.status == 200
        return engine.requests
    return serve(scenario, config=LORAX_CONFIG, **settings)


def test_request_uses_the_adapter_it_names(serve):
    store = FakeAdapterStore()
    named, unnamed = post_and_get_requests(
        serve, {"parameters": {"adapter_id": "b", "adapter_source": "hub", "api_token": "mine"}},
        {"parameters": {"adapter_id": ""}}, store=store, headers={"Authorization": "Bearer other"})
    assert (named.adapter is not None, unnamed.adapter) == (True, None)
    [fetch] = store.requests_of("fetch")
    assert (fetch["source"], fetch["name"], fetch["token"]) == ("hub", "b", "mine")


def test_merged_adapters_are_requested_from_the_store(serve):
    store = FakeAdapterStore()
    merged_adapters = MERGED_ADAPTERS | {"merge_strategy": "TIES", "majority_sign_method": "Frequency"}
    post_and_get_requests(serve, {"parameters": {"merged_adapters": merged_adapters}}, store=store)
    [merge] = store.requests_of("merge")
    assert (merge["strategy"], merge["sign"], merge["density"]) == ("ties", "frequency", 1.0)
    assert merge["weights"] == [0.5, 0.5]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_missing_adapter_fails_only_its_own_request(post, path):
    status, _, text = post(path, config=LORAX_CONFIG, store=FakeAdapterStore(), inputs="hi",
                           parameters={"adapter_id": "c"})
    response = json.loads(text.removeprefix("data:"))
    assert (status, response["error_type"]) == (424 if path == "/generate" else 200, "generation")
    assert response["error"].startswith("Request failed during generation: ")


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
@pytest.mark.parametrize(("parameters", "names"), [
    ({}, (None, None)), ({"adapter_id": "b", "adapter_source": "s3"}, ("b", "s3")),
    ({"adapter_id": "mine"}, ("a", "local")), ({"merged_adapters": MERGED_ADAPTERS}, ("a,b", "local"))], ids=str)
def test_headers_name_the_adapter_used(post, path, parameters, names):
    _, headers, _ = post(path, config=PRELOADED_CONFIG, store=FakeAdapterStore(), inputs="hi", parameters=parameters)
    assert (headers.get("x-adapter-id"), headers.get("x-adapter-source")) == names


# -- headers, tokens, facts


def test_headers_report_milliseconds_and_counts(post):
    _, headers, _ = post("/generate", config=LORAX_CONFIG, inputs="höi")
    expected = {
        "compute-type": "gpu+optimized", "compute-characters": "3", "queue-time": "250", "inference-time": "500",
        "time-per-token": "125", "time-to-first-token": "125", "time-per-output-token": "125", "prompt-tokens": "4",
        "generated-tokens": "4", "skipped-tokens": "0", "total-tokens": "8", "model-id": "loom"}
    assert {name: headers[f"x-{name}"] for name in expected} == expected
    assert all(headers[f"x-{name}"].isdigit() for name in ("compute-time", "total-time", "validation-time"))


def test_stream_headers_report_what_is_known_at_the_start(post):
    _, headers, _ = post("/generate_stream", config=LORAX_CONFIG, inputs="hi")
    assert (headers["x-compute-type"], headers["x-compute-characters"], headers["x-model-id"]) == (
        "gpu+optimized", "2", "loom")
    assert (headers["X-Accel-Buffering"], "x-total-tokens" in headers) == ("no", False)


def test_tokenize_returns_vocabulary_pieces(post):
    text = post("/tokenize", config=LORAX_CONFIG, inputs="a é", add_special_tokens=False)[2]
    assert json.loads(text) == [
        {"id": 97, "text": "a", "start": 0, "stop": 1}, {"id": 32, "text": "Ġ", "start": 1, "stop": 2},
        {"id": 195, "text": "Ã", "start": 2, "stop": 3}, {"id": 169, "text": "©", "start": 2, "stop": 3}]


def test_info_has_the_fields_that_lorax_clients_expect(serve):
    async def scenario(client, _):
        info = await (await client.get("/info")).json()
        assert (info["model_id"], info["model_dtype"], info["max_input_length"]) == ("loom", "torch.float32", 1599)
        assert [*info] == [
            "model_id", "model_sha", "model_dtype", "model_device_type", "model_pipeline_tag",
            "max_concurrent_requests", "max_best_of", "max_stop_sequences", "max_input_length", "max_total_tokens",
            "waiting_served_ratio", "max_batch_total_tokens", "max_waiting_tokens", "validation_workers",
            "eager_prefill", "version", "sha", "docker_label", "request_logger_url"]
    serve(scenario, config=LORAX_CONFIG)


MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_BODY, COMPLETION_BODY = {"messages": MESSAGES}, {"prompt": "hi"}
BODY_BY_PATH = {"/v1/chat/completions": CHAT_BODY, "/v1/completions": COMPLETION_BODY}
VARYING_FIELDS = re.compile(r'"created":\d{2,}|"system_fingerprint":"[^"]*"')
STOP_STRING_SCRIPT = make_text_events("ab", FinishReason.STOP_STRING)
END_TOKEN_SCRIPT = [TokenEvent(97, "a", -0.5, False), TokenEvent(256, "<|end|>", -0.5, True),
                    FinishedEvent(FinishReason.END_TOKEN, "a", 2, make_finished_timeline())]
FAILURE_SCRIPT = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]
TOOL_CALL_TEXT = '<tool_call>{"name": "paint", "arguments": {"colour": "red"}}</tool_call>'
TOOL_CALL_SCRIPT = [TokenEvent(97, TOOL_CALL_TEXT, -0.5, False), TokenEvent(256, "<|end|>", -0.5, True),
                    FinishedEvent(FinishReason.END_TOKEN, TOOL_CALL_TEXT, 2, make_finished_timeline())]
TOOL_TEMPLATE = ChatTemplate("{{ tools | tojson }}{{ messages[0].content }}<tool_call>", {})
PAINT_TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}]
USAGE = '{"prompt_tokens":20,"total_tokens":22,"completion_tokens":2}'
TEXT_USAGE = USAGE.replace("20", "2").replace("22", "4")
ZERO_USAGE = '{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}'
TEXT_FIELDS = '"id":"null","object":"text_completion","created":0,"model":"null"'
CHUNK_FIELDS = TEXT_FIELDS.replace("text_completion", "chat.completion.chunk")
FAILURE_EVENT = 'data:{"error":"Request failed during generation: broken","error_type":"generation"}\n\n'
RESPONSE_CASES = {
    "a chat": (
        "/v1/chat/completions", CHAT_BODY, STOP_STRING_SCRIPT,
        '{"id":"null","object":"text_completion","created":-,"model":"loom","choices":[{"index":0,"message":'
        f'{{"role":"assistant","content":"ab"}},"finish_reason":"content_filter"}}],"usage":{USAGE},'
        '"system_fingerprint":-}'),
    "calls": (
        "/v1/chat/completions", {**CHAT_BODY, "tools": PAINT_TOOLS}, TOOL_CALL_SCRIPT,
        '{"id":"null","object":"text_completion","created":-,"model":"loom","choices":[{"index":0,"message":'
        '{"role":"assistant","tool_calls":[{"id":"0","type":"function","function":{"description":null,"name":"paint",'
        '"arguments":"{\\"colour\\": \\"red\\"}"}}]},"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":100,"total_tokens":102,"completion_tokens":2},"system_fingerprint":-}'),
    "a text": (
        "/v1/completions", COMPLETION_BODY, make_text_events("ab"),
        f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
        f'"usage":{TEXT_USAGE}}}'),
    "a text behind its prompt": (
        "/v1/completions", {**COMPLETION_BODY, "echo": True, "logprobs": 1}, END_TOKEN_SCRIPT,
        f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"hia","logprobs":null,"finish_reason":"stop"}}],'
        f'"usage":{TEXT_USAGE}}}'),
    "SageMaker": (
        "/invocations", COMPLETION_BODY, make_text_events("ab"),
        f'{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}}],'
        f'"usage":{TEXT_USAGE}}}'),
}
STREAM_CASES = {
    "a chat that ended": (
        "/v1/chat/completions", CHAT_BODY, END_TOKEN_SCRIPT,
        f'data:{{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},'
        f'"finish_reason":null}}]}}'
        f'\n\ndata:{{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"usage":{USAGE}}}\n\n'
        'data:[DONE]\n\n'),
    "a chat that was stopped": (
        "/v1/chat/completions", CHAT_BODY, STOP_STRING_SCRIPT,
        f'data:{{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"a"}},'
        f'"finish_reason":null}}]}}'
        f'\n\ndata:{{{CHUNK_FIELDS},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"b"}},'
        f'"finish_reason":"content_filter"}}],"usage":{USAGE}}}\n\ndata:[DONE]\n\n'),
    "a text that ended": (
        "/v1/completions", COMPLETION_BODY, END_TOKEN_SCRIPT,
        f'data:{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":null}}],'
        f'"usage":{ZERO_USAGE}}}'
        f'\n\ndata:{{{TEXT_FIELDS},"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}}],'
        f'"usage":{TEXT_USAGE}}}\n\ndata:[DONE]\n\n'),
    "a chat that failed": ("/v1/chat/completions", CHAT_BODY, FAILURE_SCRIPT[1:], FAILURE_EVENT),
    "a text that failed": ("/v1/completions", COMPLETION_BODY, FAILURE_SCRIPT[1:], FAILURE_EVENT),
    "what is wrong": (
        "/v1/completions", {"prompt": ""}, [],
        'data:{"error":"Input validation error: `inputs` cannot be empty","error_type":"validation"}\n\n'),
}


def mask_varying_fields(text):
    return VARYING_FIELDS.sub(lambda match: match[0].partition(":")[0] + ":-", text)


def choose_template(body):
    return TOOL_TEMPLATE if "tools" in body else simulated_model_template()


def post_to_path(serve, path, *bodies, **settings):
    """Post the bodies, each with the fields that the route requires, and return the engine's requests."""
    async def scenario(client, engine):
        for body in bodies:
            answer = await client.post(path, json=BODY_BY_PATH[path] | body)
            assert answer.status == 200, await answer.text()
        return engine.requests
    return serve(scenario, config=LORAX_CONFIG, **settings)


@pytest.mark.parametrize(("path", "body", "script", "expected"), RESPONSE_CASES.values(), ids=RESPONSE_CASES)
def test_response_matches_lorax_byte_for_byte(post, path, body, script, expected):
    status, _, text = post(path, script, config=LORAX_CONFIG, template=choose_template(body), **body)
    assert (status, mask_varying_fields(text)) == (200, expected)


@pytest.mark.parametrize(("path", "body", "script", "expected"), STREAM_CASES.values(), ids=STREAM_CASES)
def test_stream_matches_lorax_byte_for_byte(post, path, body, script, expected):
    status, headers, text = post(path, script, config=LORAX_CONFIG, stream=True, **body)
    assert (status, headers["Content-Type"], text) == (200, "text/event-stream", expected)


def test_streamed_tool_calls_are_sent_as_text(post):
    text = post("/v1/chat/completions", TOOL_CALL_SCRIPT, config=LORAX_CONFIG, template=TOOL_TEMPLATE, stream=True,
                tools=PAINT_TOOLS, **CHAT_BODY)[2]
    assert json.loads(text.split("\n\n")[0].removeprefix("data:"))["choices"][0]["delta"]["content"] == TOOL_CALL_TEXT


def test_chat_samples_by_default_and_completion_only_on_request(serve):
    cold, warm, *_ = post_to_path(serve, "/v1/chat/completions", {"temperature": 0, "top_k": 2}, {}, {"n": 2})
    assert (cold.sampling.temperature, warm.sampling.temperature) == (0, 1)
    plain, several = post_to_path(serve, "/v1/completions", {}, {"n": 3})
    assert (plain.sampling.temperature, several.sampling.temperature) == (0, 1)


@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_common_parameters_reach_the_request(serve, path):
    [request] = post_to_path(serve, path,
                                      {"max_tokens": 7, "top_k": 2, "repetition_penalty": 2, "presence_penalty": 1,
                                       "frequency_penalty": 0.5, "stop": ["."], "seed": 1, "ignore_eos_token": True})
    sampling = request.sampling
    assert (request.max_new_tokens, request.stop_strings, request.end_tokens) == (7, (".",), frozenset())
    assert (sampling.top_k, sampling.repetition_penalty) == (2, 2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, 0.5)


@pytest.mark.parametrize(("path", "field"), [("/v1/chat/completions", "n"), ("/v1/completions", "best_of")])
def test_n_and_best_of_start_that_many_sequences(serve, path, field):
    requests = post_to_path(serve, path, {field: 2, "temperature": 0.5})
    assert [request.id.endswith("-2") for request in requests] == [False, True]


@pytest.mark.parametrize(("response_format", "constrained"), [
    ({"type": "text", "schema": {"type": "object"}}, False), ({"type": "json_object"}, True),
    ({"type": "json_object", "schema": {"type": "object"}}, True), ({"type": "json_schema"}, True),
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}, True)], ids=str)
def test_response_format_is_read_as_in_openai(serve, monkeypatch, response_format, constrained):
    async def compile_grammar(_, grammar, tenant_name):
        return grammar.source
    monkeypatch.setattr("router.grammars.compiler_client.GrammarCompiler.compile", compile_grammar)
    [request] = post_to_path(serve, "/v1/chat/completions", {"response_format": response_format},
                                      grammars=True)
    assert (request.grammar is not None) == constrained


def test_tools_and_response_format_are_mutually_exclusive(post):
    response = post("/v1/chat/completions", config=LORAX_CONFIG, tools=PAINT_TOOLS,
                    response_format={"type": "json_object"}, **CHAT_BODY)
    assert response[::2] == (422, '{"error":"Tool error: Response format and tools are mutually exclusive",'
                             '"error_type":"tool_error"}')


GUIDED_FIELDS = {"guided_regex": "[ab]+", "guided_json": {"type": "object"}, "guided_choice": ["a"],
                 "guided_grammar": 'start: "a"', "structured_outputs": {"regex": "a"}}


@pytest.mark.parametrize("field", GUIDED_FIELDS)
@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_grammar_in_another_field_is_named_in_errors(post, path, field):
    """Regression: errors named `response_format`."""
    status, _, text = post(path, config=LORAX_CONFIG, **BODY_BY_PATH[path], **{field: GUIDED_FIELDS[field]})
    assert (status, f"`{field}` is given, but this model is served without grammars" in text) == (422, True), text


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
@pytest.mark.parametrize("field", GUIDED_FIELDS)
def test_tools_and_a_grammar_are_mutually_exclusive(post, field, tool_choice):
    """Regression: the grammar replaced that of a required call, and the answer was read as a call."""
    status, _, text = post("/v1/chat/completions", config=LORAX_CONFIG, tools=PAINT_TOOLS, tool_choice=tool_choice,
                           template=TOOL_TEMPLATE, **CHAT_BODY, **{field: GUIDED_FIELDS[field]})
    assert (status, json.loads(text)["error"]) == (422, "Tool error: Grammar and tools are mutually exclusive")


def test_ignored_fields_of_openai_are_named(post):
    for body, ignored in (({"logprobs": True, "top_logprobs": 2, "include_stop_str_in_output": False, "x": 1},
                           "x, include_stop_str_in_output, logprobs, top_logprobs"),
                          ({"logprobs": False, "include_stop_str_in_output": True}, None)):
        headers = post("/v1/chat/completions", config=LORAX_CONFIG, **CHAT_BODY, **body)[1]
        assert headers.get("x-ignored-fields") == ignored


def test_only_the_first_call_is_returned_if_calls_must_not_be_parallel(post):
    text = TOOL_CALL_TEXT * 2
    script = [TokenEvent(97, text, -1.0, False), FinishedEvent(FinishReason.LENGTH, text, 1, make_finished_timeline())]
    for fields, num_calls in (({}, 2), ({"parallel_tool_calls": False}, 1)):
        answer = post("/v1/chat/completions", [*script], config=LORAX_CONFIG, template=TOOL_TEMPLATE, tools=PAINT_TOOLS,
                      **CHAT_BODY, **fields)[2]
        assert len(json.loads(answer)["choices"][0]["message"]["tool_calls"]) == num_calls


def test_missing_chat_template_is_reported(post):
    status, _, text = post("/v1/chat/completions", config=LORAX_CONFIG, template=None, **CHAT_BODY)
    assert (status, json.loads(text)["error_type"]) == (422, "template_error")
    assert json.loads(text)["error"].startswith("Failed applying chat template to inputs: ")


@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_model_field_names_an_adapter_unless_it_is_the_base_model(post, path):
    for model, adapter in (("loom", None), ("", None), ("b", "b")):
        for stream in (False, True):
            _, headers, _ = post(path, config=LORAX_CONFIG, store=FakeAdapterStore(), model=model, stream=stream,
                                 **BODY_BY_PATH[path])
            assert headers.get("x-adapter-id") == adapter
            assert (headers["x-compute-type"], headers["x-model-id"]) == ("gpu+optimized", "loom")


@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_missing_adapter_fails_as_on_lorax_routes(post, path):
    status, _, text = post(path, config=LORAX_CONFIG, store=FakeAdapterStore(), model="c", **BODY_BY_PATH[path])
    assert (status, json.loads(text)["error_type"]) == (424, "generation")


# -- a stream that goes on


def test_stream_goes_on_behind_the_tokens_that_the_client_has(post):
    script = [*make_text_events("ft")[:-1], FinishedEvent(FinishReason.LENGTH, "weft", 4, make_finished_timeline())]
    _, _, text = post("/generate_stream", script, config=LORAX_CONFIG, inputs="hi",
                      parameters={"resume_token_ids": [*b"we"]})
    events = [json.loads(line.removeprefix("data:")) for line in text.removesuffix("\n\n").split("\n\n")]
    assert [event["token"]["text"] for event in events] == ["f", "t"]
    assert events[-1]["generated_text"] == "weft"


@pytest.mark.parametrize(("path", "body"), [
    ("/generate", {"inputs": "hi", "parameters": {"resume_token_ids": [97]}}),
    ("/v1/completions", {"prompt": "hi", "stream": True, "resume_token_ids": [97]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "resume_token_ids": [97]})])
def test_answer_that_names_no_tokens_does_not_go_on(post, path, body):
    status, _, text = post(path, config=LORAX_CONFIG, **body)
    assert (status, "`resume_token_ids` is given, but" in text) == (422, True)
