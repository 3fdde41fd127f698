"""TGI's routes over a scripted engine."""

import asyncio
import json
from dataclasses import fields

import pytest
from aiohttp import ClientPayloadError
from support.servers.expected_streams import make_finished_timeline, make_text_events

from router.adapters.reference import AdapterReference
from router.engine.output_stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, TokenEvent, TopToken
from router.errors import Cancelled, GenerationFailed, NotReady, Overloaded, TimedOut
from router.http.lorax.parameters import LoraxParameters
from router.http.tgi.routes import BaseGenerateParameters, GenerateRequest
from router.http.transport.request_context_and_middleware import RequestContext
from router.request import DEFAULT_TENANT, FinishReason
from router.validation.validator import GenerationInput

LOW_LOGPROB_SCRIPT = [TokenEvent(97, "a", -9.0, False),
                      FinishedEvent(FinishReason.LENGTH, "a", 1, make_finished_timeline())]
HIGH_LOGPROB_SCRIPT = [TokenEvent(98, "b", -1.0, False),
                       FinishedEvent(FinishReason.LENGTH, "b", 1, make_finished_timeline())]
EXPECTED_HEADERS = {"compute-characters": "3", "prompt-tokens": "4", "generated-tokens": "4", "queue-time": "250",
                    "inference-time": "500", "time-per-token": "125"}
FAILURE_SCRIPT = [FailedEvent(GenerationFailed("broken"))]


def post_generate(post, *scripts, inputs="hi", **parameters):
    status, _, text = post("/generate", *scripts, inputs=inputs, parameters=parameters)
    assert status == 200
    return json.loads(text)


def post_generate_stream(post, *scripts, inputs="hi", **parameters):
    status, _, text = post("/generate_stream", *scripts, inputs=inputs, parameters=parameters)
    assert status == 200
    return [json.loads(line.removeprefix("data: ")) for line in text.removesuffix("\n\n").split("\n\n")]


# ---------------------------------------------------------------------------------------------------------------------
# POST /generate


def test_response_is_the_generated_text(post):
    assert post_generate(post) == {"generated_text": "weft"}


def test_return_full_text_prepends_the_prompt(post):
    assert post_generate(post, return_full_text=True) == {"generated_text": "hiweft"}


def test_details_list_every_token(post):
    details = post_generate(post, details=True)["details"]
    assert [token["text"] for token in details["tokens"]] == list("weft")
    assert (details["finish_reason"], details["generated_tokens"], details["prefill"]) == ("length", 4, [])


def test_decoder_input_details_add_the_prompt_tokens(post):
    script = [PromptLogprobsEvent(1, (-2.0,)), *LOW_LOGPROB_SCRIPT]
    details = post_generate(post, script, decoder_input_details=True)["details"]
    assert [token["logprob"] for token in details["prefill"]] == [None, -2.0]
    assert len(details["tokens"]) == 1


def test_top_tokens_are_listed_per_token(post):
    script = [TokenEvent(97, "a", -1.0, False, (TopToken(97, "a", -1.0, False),)), *LOW_LOGPROB_SCRIPT]
    assert [[top["id"] for top in tops]
            for tops in post_generate(post, script, details=True)["details"]["top_tokens"]] == [[97], []]


def test_headers_report_times_and_counts(post):
    _, headers, _ = post("/generate", inputs="höi", parameters={})
    assert headers["Content-Type"] == "application/json"
    assert headers["x-compute-type"] == "1-cpu"
    assert float(headers["x-compute-time"]) >= 0
    assert {name: headers[f"x-{name}"] for name in EXPECTED_HEADERS} == EXPECTED_HEADERS
    assert {"x-total-time", "x-validation-time"} <= set(headers)


def test_headers_report_time_per_phase(post):
    _, headers, _ = post("/generate", inputs="hi", headers={"x-request-id": "mine"})
    assert [headers[f"x-{name}"] for name in ("queue-ms", "prefill-ms", "decode-ms")] == ["250.0", "125.0", "375.0"]
    assert [headers[f"x-{name}"] for name in ("cached-tokens", "wait-reason", "request-id")] == ["0", "queue", "mine"]


def test_missing_parameters_sample_and_empty_ones_are_greedy(serve):
    async def scenario(client, engine):
        await client.post("/generate", json={"inputs": "x"})
        await client.post("/generate", json={"inputs": "x", "parameters": {}})
        assert [request.sampling.temperature for request in engine.requests] == [1.0, 0.0]
    serve(scenario)


def test_image_markup_is_plain_text_for_a_text_model(serve):
    async def scenario(client, engine):
        text = "![](data:image/png;base64,x) what is it?"
        await client.post("/generate", json={"inputs": text})
        assert bytes(engine.requests[0].prompt).decode() == text
    serve(scenario)


def test_parameters_reach_the_request(serve):
    async def scenario(client, engine):
        await client.post("/generate", json={"inputs": "weaving", "parameters": {
            "temperature": 0.5, "top_k": 3, "repetition_penalty": 2, "max_new_tokens": 9, "stop": ["."], "truncate": 2,
            "watermark": True, "top_n_tokens": 2, "decoder_input_details": True, "seed": 1}})
        [request] = engine.requests
        sampling = request.sampling
        assert (request.prompt, request.max_new_tokens, request.stop_strings) == (tuple(b"ng"), 9, (".",))
        assert (sampling.temperature, sampling.top_k, sampling.top_n_tokens) == (0.5, 3, 2)
        assert (sampling.repetition_penalty, sampling.watermark) == (2, True)
        assert request.prompt_logprobs
    serve(scenario)


def test_end_token_can_be_ignored(serve):
    async def scenario(client, engine):
        for parameters in ({}, {"ignore_eos_token": False}, {"ignore_eos_token": True}):
            await client.post("/generate", json={"inputs": "x", "parameters": parameters})
        kept, also_kept, ignored = engine.requests
        assert kept.end_tokens == also_kept.end_tokens != frozenset()
        assert ignored.end_tokens == frozenset()
    serve(scenario)


def test_priority_timeout_and_cache_salt_reach_the_request(serve):
    async def scenario(client, engine):
        body = {"inputs": "x" * 16, "parameters": {"priority": 3}}
        await client.post("/generate", json=body, headers={"x-request-timeout-ms": "60000", "x-request-id": "mine"})
        for salt_fields in ({"cache_salt": "s"}, {"parameters": {"cache_salt": "s"}}):
            await client.post("/generate", json=body | salt_fields)
        first, second, third = engine.requests
        assert (first.id, first.priority) == ("mine", 3)
        assert 59 < first.timeout <= 60
        assert first.cache_namespace != second.cache_namespace == third.cache_namespace
        assert first.block_hashes != second.block_hashes == third.block_hashes
        assert (second.timeout, len(second.id)) == (None, 32)
    serve(scenario)


def test_every_choice_has_a_request_id(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", headers={"x-request-id": "mine"}, json={
            "inputs": "x", "parameters": {"best_of": 2, "do_sample": True}})
        assert answer.headers["x-request-id"] == "mine"
        assert [request.id for request in engine.requests] == ["mine", "mine-2"]
    serve(scenario, LOW_LOGPROB_SCRIPT, HIGH_LOGPROB_SCRIPT)


@pytest.mark.parametrize(("body", "headers", "field"), [
    ({"cache_salt": "a", "parameters": {"cache_salt": "b"}}, {}, "cache_salt"),
    ({"cache_salt": ""}, {}, "cache_salt"),
    ({"parameters": {"priority": 11}}, {}, "priority"),
    ({}, {"x-request-timeout-ms": "soon"}, "x-request-timeout-ms"),
])
def test_error_names_the_field_and_keeps_the_request_id(post, body, headers, field):
    status, response_headers, text = post("/generate", headers=headers | {"x-request-id": "mine"}, inputs="x", **body)
    assert (status, response_headers["x-request-id"]) == (422, "mine")
    assert f"`{field}`" in json.loads(text)["error"]
    status, response_headers, text = post("/generate_stream", headers=headers, inputs="x", **body)
    assert (status, len(response_headers["x-request-id"])) == (200, 32)
    assert f"`{field}`" in text


def test_request_timeout_is_reported(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", json={"inputs": "x"}, headers={"x-request-id": "mine"})
        assert (answer.status, (await answer.json())["error_type"]) == (408, "timeout")
        assert answer.headers["x-request-id"] == "mine"
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        assert (answer.status, '"error_type":"timeout"' in await answer.text()) == (200, True)
    serve(scenario, [FailedEvent(TimedOut("too late"))], [FailedEvent(TimedOut("too late"))])


def test_text_generated_before_the_timeout_is_returned(post):
    script = [TokenEvent(97, "a", -1.0, False), FinishedEvent(FinishReason.TIMEOUT, "a", 1, make_finished_timeline())]
    answer = post_generate(post, script, details=True)
    assert (answer["generated_text"], answer["details"]["finish_reason"]) == ("a", "timeout")


def test_seed_is_reported_only_when_sampling(post):
    assert post_generate(post, details=True)["details"]["seed"] is None
    assert post_generate(post, details=True, seed=5)["details"]["seed"] is None
    assert post_generate(post, details=True, seed=5, do_sample=True)["details"]["seed"] == 5
    assert post_generate(post, details=True, do_sample=True)["details"]["seed"] >= 0


def test_best_of_returns_the_best_sequence(post):
    answer = post_generate(post, LOW_LOGPROB_SCRIPT, HIGH_LOGPROB_SCRIPT, best_of=2, do_sample=True, details=True)
    assert answer["generated_text"] == "b"
    [other_sequence] = answer["details"]["best_of_sequences"]
    assert (other_sequence["generated_text"], other_sequence["tokens"][0]["logprob"]) == ("a", -9)


def test_failure_of_one_choice_cancels_the_others(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", json={"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}})
        assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert engine.disconnected_requests == engine.requests[:1]
    serve(scenario, [TokenEvent(97, "a", -1.0, False)], FAILURE_SCRIPT)


def test_rejection_of_one_choice_cancels_the_others(serve):
    async def scenario(client, engine):
        submit = engine.submit

        def submit_and_reject_next(*submit_args):
            engine.submit_errors = [Overloaded("full")] * len(engine.streams)
            return submit(*submit_args)
        engine.submit = submit_and_reject_next
        answer = await client.post("/generate", json={"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}})
        assert answer.status == 429
        assert len(engine.disconnected_requests) == len(engine.streams) == 1
    serve(scenario, [])


@pytest.mark.parametrize(("error", "status", "error_type"), [
    (Overloaded("full", 3.5), 429, "overloaded"), (NotReady("starting"), 503, "overloaded")])
def test_rejected_request_has_a_status_and_retry_after(serve, error, status, error_type):
    async def scenario(client, engine):
        engine.submit_errors = [error]
        answer = await client.post("/generate", json={"inputs": "x"})
        assert (answer.status, (await answer.json())["error_type"]) == (status, error_type)
        assert int(answer.headers["Retry-After"]) >= 1
    serve(scenario)


def test_invalid_parameter_is_named_in_the_error(post):
    status, _, text = post("/generate", inputs="x", parameters={"top_p": 1.0})
    assert status == 422
    assert json.loads(text)["error"].startswith("Input validation error: `top_p` must be above 0 and below 1, got 1.0")


@pytest.mark.parametrize(("parameters", "message"), [
    ({"grammar": {"type": "regex", "value": "a"}}, "`grammar` is given, but this model is served without grammars"),
    ({"grammar": {"type": "regex"}}, "`grammar.value` must be a regular expression"),
    ({"grammar": {"type": "json"}}, "`grammar.value` is missing"),
    ({"grammar": "json"}, "`grammar` must be an object with a `type`"),
    ({"adapter_id": "mine"}, "`adapter_id` is given")], ids=str)
def test_unsupported_features_are_rejected(post, parameters, message):
    status, _, text = post("/generate", inputs="x", parameters=parameters)
    assert status == 422
    assert json.loads(text)["error"].startswith(f"Input validation error: {message}")


# ---------------------------------------------------------------------------------------------------------------------
# POST /generate_stream


def test_stream_has_an_event_for_each_token(post):
    events = post_generate_stream(post, details=True)
    assert [event["index"] for event in events] == [1, 2, 3, 4]
    assert [event["generated_text"] for event in events] == [None, None, None, "weft"]
    assert events[-1]["details"] == {
        "finish_reason": "length", "generated_tokens": 4, "seed": None, "input_length": 2}


def test_stream_headers_are_complete(post):
    _, headers, _ = post("/generate_stream", inputs="hi", parameters={})
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-cache"
    assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("1-cpu", "2")
    assert headers["x-weft-exact"] == "1"
    assert len(headers["x-request-id"]) == 32
    assert headers["x-accel-buffering"] == "no"


def test_return_full_text_prepends_the_prompt_on_streams(post):
    assert post_generate_stream(post, return_full_text=True)[-1]["generated_text"] == "hiweft"


@pytest.mark.parametrize(("parameters", "error"), [
    ({"best_of": 0}, "`best_of` must be 1 on a stream, got 0"),
    ({"best_of": 2, "top_p": 5}, "`best_of` must be 1 on a stream, got 2"),
    ({"decoder_input_details": True}, "`decoder_input_details`"), ({"top_p": 1.0}, "`top_p`"),
])
def test_invalid_stream_parameters_are_reported_within_the_stream(post, parameters, error):
    [event] = post_generate_stream(post, **parameters)
    assert event["error_type"] == "validation"
    assert event["error"].startswith(f"Input validation error: {error}")


def test_best_of_zero_means_one_outside_of_streams(post):
    assert post_generate(post, best_of=0) == {"generated_text": "weft"}


def test_stream_ends_with_its_failure(post):
    events = post_generate_stream(post, [TokenEvent(97, "a", -1.0, False), *FAILURE_SCRIPT])
    assert events[1] == {"error": "Request failed during generation: broken", "error_type": "generation"}


def test_rejection_is_reported_within_the_stream(serve):
    async def scenario(client, engine):
        engine.submit_errors = [Overloaded("full")]
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        assert answer.status == 200
        assert '"error_type":"overloaded"' in await answer.text()
    serve(scenario)


def test_each_token_is_sent_before_the_next_one_exists(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        await engine.request_received.wait()
        [stream] = engine.streams
        for letter in "wef":
            stream.put(TokenEvent(ord(letter), letter, -1.0, False))
            assert f'"text":"{letter}"'.encode() in await answer.content.readuntil(b"\n\n")
    serve(scenario, [])


def test_stream_of_a_cancelled_request_is_cut_off(serve, caplog):
    async def scenario(client, engine):
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        await engine.request_received.wait()
        engine.streams[0].put(FailedEvent(Cancelled("too slow")))
        with pytest.raises(ClientPayloadError):
            await answer.text()
    serve(scenario, [])
    assert not caplog.records


def test_client_that_reads_nothing_is_disconnected(serve, caplog):
    async def scenario(client, engine):
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        answer.connection.transport.pause_reading()
        await engine.request_received.wait()
        [stream] = engine.streams
        [handler] = [task for task in asyncio.all_tasks() if "_handle_request" in repr(task.get_coro())]
        while not stream.num_bytes:  # until it is stuck in a write
            stream.put(TokenEvent(97, "a" * 2**20, -1.0, False))
            for _ in range(5):
                await asyncio.sleep(0)
        stream.put(FailedEvent(Cancelled("too slow")))
        await asyncio.wait([handler])
        answer.close()
    serve(scenario, [])
    assert not caplog.records


# ---------------------------------------------------------------------------------------------------------------------
# Disconnects cancel


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_client_disconnect_cancels_its_request(serve, caplog, path):
    async def scenario(client, engine):
        task = asyncio.create_task(client.post(path, json={"inputs": "x"}))
        await engine.request_received.wait()
        task.cancel()
        await client.session.close()
        await engine.client_disconnected.wait()
        assert engine.disconnected_requests == engine.requests
    serve(scenario, [])
    assert not caplog.records


def test_client_disconnect_cancels_all_choices(serve):
    async def scenario(client, engine):
        task = asyncio.create_task(client.post("/generate", json={
            "inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}))
        await engine.request_received.wait()
        task.cancel()
        await engine.client_disconnected.wait()
        assert len(engine.disconnected_requests) == 2
    serve(scenario, [], [])


# ---------------------------------------------------------------------------------------------------------------------
# POST /


def test_root_route_returns_an_array_with_the_prompt_prepended(post):
    assert json.loads(post("/", inputs="hi")[2]) == [{"generated_text": "hiweft"}]
    assert json.loads(post("/", inputs="hi", parameters={"return_full_text": False})[2]) == [
        {"generated_text": "weft"}]


def test_root_route_can_stream(post):
    status, headers, text = post("/", inputs="hi", stream=True, parameters={"details": True})
    *_, last = [json.loads(line.removeprefix("data: ")) for line in text.removesuffix("\n\n").split("\n\n")]
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    assert (last["generated_text"], last["details"]["generated_tokens"]) == ("hiweft", 4)


def test_root_route_rejects_a_null_stream_field(post):
    assert post("/", inputs="hi", stream=None)[0] == 422


CALLER = RequestContext(DEFAULT_TENANT, "mine", 0.0, None, source_token="theirs")
PARAMETERS = {
    "adapter_id": "a", "adapter_source": "s3", "best_of": 2, "temperature": 0.5, "repetition_penalty": 1.5, "top_k": 3,
    "top_p": 0.25, "typical_p": 0.75, "do_sample": True, "max_new_tokens": 7, "ignore_eos_token": True,
    "stop": ["x", "y"], "truncate": 9, "watermark": True, "decoder_input_details": True, "seed": 11,
    "resume_token_ids": [5, 6]}
OTHER_PARAMETERS = {"frequency_penalty", "return_full_text", "details", "api_token", "merged_adapters"}


def test_parameters_become_a_generation_input():
    assert BaseGenerateParameters.model_validate(PARAMETERS).base_generation_input("hi", CALLER) == GenerationInput(
        prompt="hi", adapter=AdapterReference("a", "s3", "theirs"), best_of=2, temperature=0.5, repetition_penalty=1.5,
        top_k=3, top_p=0.25, typical_p=0.75, do_sample=True, max_new_tokens=7, ignore_eos=True,
        stop_strings=("x", "y"), truncate=9, watermark=True, prompt_logprobs=True, seed=11, tenant=DEFAULT_TENANT,
        request_id="mine", resume_token_ids=(5, 6))


def test_every_shared_parameter_is_tested():
    assert PARAMETERS.keys() | OTHER_PARAMETERS == BaseGenerateParameters.model_fields.keys()


@pytest.mark.parametrize("name", PARAMETERS.keys() - {"adapter_source"})
def test_common_parameters_mean_the_same_in_tgi_and_lorax(name):
    parameters = {name: PARAMETERS[name]}
    tgi = GenerateRequest.model_validate({"inputs": "hi", "parameters": parameters}).to_generation_input(CALLER)
    lorax = LoraxParameters.model_validate(parameters).to_generation_input("hi", CALLER, None)
    changed = {field for field in [item.name for item in fields(GenerationInput)] if getattr(tgi, field)
               != getattr(GenerationInput(prompt="hi"), field)}
    assert len(changed) == 2  # the parameter and `request_id`
    assert {getattr(lorax, field) == getattr(tgi, field) for field in changed} == {True}


def test_frequency_penalty_is_relative_in_tgi_and_absolute_in_lorax():
    """LoRAX's `frequency_penalty` uses a token's count, TGI's its share of all tokens."""
    tgi = GenerateRequest.model_validate({"inputs": "hi",
                                          "parameters": {"frequency_penalty": 0.5}}).to_generation_input(CALLER)
    lorax = LoraxParameters.model_validate({"frequency_penalty": 0.5}).to_generation_input("hi", CALLER, None)
    assert (tgi.relative_frequency_penalty, tgi.frequency_penalty) == (0.5, None)
    assert (lorax.relative_frequency_penalty, lorax.frequency_penalty) == (None, 0.5)


# -- a stream that goes on


def test_stream_goes_on_behind_the_tokens_that_the_client_has(post):
    script = [*make_text_events("ft")[:-1], FinishedEvent(FinishReason.LENGTH, "weft", 4, make_finished_timeline())]
    status, _, text = post("/generate_stream", script, inputs="hi", parameters={
        "resume_token_ids": [*b"we"], "details": True})
    events = [json.loads(line.removeprefix("data: ")) for line in text.removesuffix("\n\n").split("\n\n")]
    assert (status, [(event["index"], event["token"]["text"]) for event in events]) == (200, [(3, "f"), (4, "t")])
    assert (events[-1]["generated_text"], events[-1]["details"]["generated_tokens"]) == ("weft", 4)


def test_refused_resumption_is_an_event_of_the_stream(post):
    _, _, text = post("/generate_stream", inputs="hi", parameters={"resume_token_ids": [97], "do_sample": True})
    assert "`seed` must be given with `resume_token_ids`" in json.loads(text.removeprefix("data: "))["error"]


@pytest.mark.parametrize("path", ["/generate", "/"])
def test_answer_without_a_stream_does_not_go_on(post, path):
    status, _, text = post(path, inputs="hi", parameters={"resume_token_ids": [97]})
    assert (status, "`resume_token_ids` is given, but only a stream goes on" in text) == (422, True)
