"""TGI's routes over a scripted engine."""

import asyncio
import json

import pytest
from aiohttp import ClientPayloadError
from support.expected_streams import lived

from router.engine.stream import FailedEvent, FinishedEvent, PromptEvent, TokenEvent, TopToken
from router.errors import Cancelled, GenerationFailed, NotReady, Overloaded, TimedOut
from router.request import FinishReason

LOW = [TokenEvent(97, "a", -9.0, False), FinishedEvent(FinishReason.LENGTH, "a", 1, lived())]
HIGH = [TokenEvent(98, "b", -1.0, False), FinishedEvent(FinishReason.LENGTH, "b", 1, lived())]
TOLD = {"compute-characters": "3", "prompt-tokens": "4", "generated-tokens": "4", "queue-time": "250",
        "inference-time": "500", "time-per-token": "125"}
BROKEN = [FailedEvent(GenerationFailed("broken"))]


def generated(post, *scripts, inputs="hi", **parameters):
    status, _, text = post("/generate", *scripts, inputs=inputs, parameters=parameters)
    assert status == 200
    return json.loads(text)


def streamed(post, *scripts, inputs="hi", **parameters):
    status, _, text = post("/generate_stream", *scripts, inputs=inputs, parameters=parameters)
    assert status == 200
    return [json.loads(line.removeprefix("data: ")) for line in text.removesuffix("\n\n").split("\n\n")]


# ---------------------------------------------------------------------------------------------------------------------
# POST /generate


def test_an_answer_is_the_text(post):
    assert generated(post) == {"generated_text": "weft"}


def test_the_prompt_may_come_with_the_text(post):
    assert generated(post, return_full_text=True) == {"generated_text": "hiweft"}


def test_details_tell_every_token(post):
    details = generated(post, details=True)["details"]
    assert [token["text"] for token in details["tokens"]] == list("weft")
    assert (details["finish_reason"], details["generated_tokens"], details["prefill"]) == ("length", 4, [])


def test_details_of_the_prompt_come_with_the_others(post):
    script = [PromptEvent(1, (-2.0,)), *LOW]
    details = generated(post, script, decoder_input_details=True)["details"]
    assert [token["logprob"] for token in details["prefill"]] == [None, -2.0]
    assert len(details["tokens"]) == 1


def test_top_tokens_are_listed_per_token(post):
    script = [TokenEvent(97, "a", -1.0, False, (TopToken(97, "a", -1.0, False),)), *LOW]
    assert [[top["id"] for top in tops] for tops in generated(post, script, details=True)["details"]["top_tokens"]] == [
        [97], []]


def test_headers_tell_times_and_counts(post):
    _, headers, _ = post("/generate", inputs="höi", parameters={})
    assert headers["Content-Type"] == "application/json"
    assert headers["x-compute-type"] == "1-cpu"
    assert float(headers["x-compute-time"]) >= 0
    assert {name: headers[f"x-{name}"] for name in TOLD} == TOLD
    assert {"x-total-time", "x-validation-time"} <= set(headers)


def test_headers_tell_what_the_time_went_to(post):
    _, headers, _ = post("/generate", inputs="hi", headers={"x-request-id": "mine"})
    assert [headers[f"x-{name}"] for name in ("queue-ms", "prefill-ms", "decode-ms")] == ["250.0", "125.0", "375.0"]
    assert [headers[f"x-{name}"] for name in ("cached-tokens", "wait-reason", "request-id")] == ["0", "queue", "mine"]


def test_without_parameters_is_sampled_and_with_empty_ones_is_not(serve):
    async def scenario(client, engine):
        await client.post("/generate", json={"inputs": "x"})
        await client.post("/generate", json={"inputs": "x", "parameters": {}})
        assert [request.sampling.temperature for request in engine.requests] == [1.0, 0.0]
    serve(scenario)


def test_an_image_in_a_text_is_text_to_a_model_that_sees_none(serve):
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


def test_what_is_asked_of_the_queue_and_of_the_cache_reaches_the_request(serve):
    async def scenario(client, engine):
        asked = {"inputs": "x" * 16, "parameters": {"priority": 3}}
        await client.post("/generate", json=asked, headers={"x-request-timeout-ms": "60000", "x-request-id": "mine"})
        for salted in ({"cache_salt": "s"}, {"parameters": {"cache_salt": "s"}}):
            await client.post("/generate", json=asked | salted)
        first, second, third = engine.requests
        assert (first.id, first.priority) == ("mine", 3)
        assert 59 < first.timeout <= 60
        assert first.namespace != second.namespace == third.namespace
        assert first.block_hashes != second.block_hashes == third.block_hashes
        assert (second.timeout, len(second.id)) == (None, 32)
    serve(scenario)


def test_all_choices_of_a_request_have_ids(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", headers={"x-request-id": "mine"}, json={
            "inputs": "x", "parameters": {"best_of": 2, "do_sample": True}})
        assert answer.headers["x-request-id"] == "mine"
        assert [request.id for request in engine.requests] == ["mine", "mine-2"]
    serve(scenario, LOW, HIGH)


@pytest.mark.parametrize(("body", "headers", "field"), [
    ({"cache_salt": "a", "parameters": {"cache_salt": "b"}}, {}, "cache_salt"),
    ({"cache_salt": ""}, {}, "cache_salt"),
    ({"parameters": {"priority": 11}}, {}, "priority"),
    ({}, {"x-request-timeout-ms": "soon"}, "x-request-timeout-ms"),
])
def test_what_is_wrong_with_it_is_named_and_the_request_has_its_id(post, body, headers, field):
    status, told, text = post("/generate", headers=headers | {"x-request-id": "mine"}, inputs="x", **body)
    assert (status, told["x-request-id"]) == (422, "mine")
    assert f"`{field}`" in json.loads(text)["error"]
    status, told, text = post("/generate_stream", headers=headers, inputs="x", **body)
    assert (status, len(told["x-request-id"])) == (200, 32)
    assert f"`{field}`" in text


def test_the_end_of_its_time_is_told(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", json={"inputs": "x"}, headers={"x-request-id": "mine"})
        assert (answer.status, (await answer.json())["error_type"]) == (408, "timeout")
        assert answer.headers["x-request-id"] == "mine"
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        assert (answer.status, '"error_type":"timeout"' in await answer.text()) == (200, True)
    serve(scenario, [FailedEvent(TimedOut("too late"))], [FailedEvent(TimedOut("too late"))])


def test_what_was_said_until_its_time_ran_out_is_the_answer(post):
    script = [TokenEvent(97, "a", -1.0, False), FinishedEvent(FinishReason.TIMEOUT, "a", 1, lived())]
    answer = generated(post, script, details=True)
    assert (answer["generated_text"], answer["details"]["finish_reason"]) == ("a", "timeout")


def test_the_seed_is_told_where_there_was_one(post):
    assert generated(post, details=True)["details"]["seed"] is None
    assert generated(post, details=True, seed=5)["details"]["seed"] is None
    assert generated(post, details=True, seed=5, do_sample=True)["details"]["seed"] == 5
    assert generated(post, details=True, do_sample=True)["details"]["seed"] >= 0


def test_the_best_of_several_is_the_answer(post):
    answer = generated(post, LOW, HIGH, best_of=2, do_sample=True, details=True)
    assert answer["generated_text"] == "b"
    [other] = answer["details"]["best_of_sequences"]
    assert (other["generated_text"], other["tokens"][0]["logprob"]) == ("a", -9)


def test_when_one_of_several_fails_all_are_given_up(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", json={"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}})
        assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert engine.left == engine.requests[:1]
    serve(scenario, [TokenEvent(97, "a", -1.0, False)], BROKEN)


def test_when_one_of_several_is_refused_all_are_given_up(serve):
    async def scenario(client, engine):
        submit = engine.submit
        def once(request, came):
            engine.refusals = [Overloaded("full")] * len(engine.streams)
            return submit(request, came)
        engine.submit = once
        answer = await client.post("/generate", json={"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}})
        assert answer.status == 429
        assert len(engine.left) == len(engine.streams) == 1
    serve(scenario, [])


@pytest.mark.parametrize(("error", "status", "error_type"), [
    (Overloaded("full", 3.5), 429, "overloaded"), (NotReady("starting"), 503, "overloaded")])
def test_a_refusal_has_a_status(serve, error, status, error_type):
    async def scenario(client, engine):
        engine.refusals = [error]
        answer = await client.post("/generate", json={"inputs": "x"})
        assert (answer.status, (await answer.json())["error_type"]) == (status, error_type)
        assert int(answer.headers["Retry-After"]) >= 1
    serve(scenario)


def test_an_invalid_request_names_its_fault(post):
    status, _, text = post("/generate", inputs="x", parameters={"top_p": 1.0})
    assert status == 422
    assert json.loads(text)["error"].startswith("Input validation error: `top_p` must be above 0 and below 1, got 1.0")


@pytest.mark.parametrize(("parameters", "message"), [
    ({"grammar": {"type": "regex", "value": "a"}}, "`grammar` is given, but this model is served without grammars"),
    ({"grammar": {"type": "regex"}}, "`grammar.value` must be a regular expression"),
    ({"grammar": {"type": "json"}}, "`grammar.value` is missing"),
    ({"grammar": "json"}, "`grammar` must be an object with a `type`"),
    ({"adapter_id": "mine"}, "`adapter_id` is given")], ids=str)
def test_what_this_model_is_served_without_is_refused(post, parameters, message):
    status, _, text = post("/generate", inputs="x", parameters=parameters)
    assert status == 422
    assert json.loads(text)["error"].startswith(f"Input validation error: {message}")


# ---------------------------------------------------------------------------------------------------------------------
# POST /generate_stream


def test_a_stream_has_an_event_for_each_token(post):
    events = streamed(post, details=True)
    assert [event["index"] for event in events] == [1, 2, 3, 4]
    assert [event["generated_text"] for event in events] == [None, None, None, "weft"]
    assert events[-1]["details"] == {
        "finish_reason": "length", "generated_tokens": 4, "seed": None, "input_length": 2}


def test_the_head_of_a_stream_tells_what_follows(post):
    _, headers, _ = post("/generate_stream", inputs="hi", parameters={})
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-cache"
    assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("1-cpu", "2")
    assert headers["x-weft-exact"] == "1"
    assert len(headers["x-request-id"]) == 32
    assert headers["x-accel-buffering"] == "no"


def test_the_prompt_may_come_with_the_streamed_text(post):
    assert streamed(post, return_full_text=True)[-1]["generated_text"] == "hiweft"


@pytest.mark.parametrize(("parameters", "error"), [
    ({"best_of": 0}, "`best_of` must be 1 on a stream, got 0"),
    ({"best_of": 2, "top_p": 5}, "`best_of` must be 1 on a stream, got 2"),
    ({"decoder_input_details": True}, "`decoder_input_details`"), ({"top_p": 1.0}, "`top_p`"),
])
def test_what_is_wrong_with_a_stream_is_told_in_it(post, parameters, error):
    [event] = streamed(post, **parameters)
    assert event["error_type"] == "validation"
    assert event["error"].startswith(f"Input validation error: {error}")


def test_best_of_none_is_one_outside_of_streams(post):
    assert generated(post, best_of=0) == {"generated_text": "weft"}


def test_a_stream_ends_with_its_failure(post):
    events = streamed(post, [TokenEvent(97, "a", -1.0, False), *BROKEN])
    assert events[1] == {"error": "Request failed during generation: broken", "error_type": "generation"}


def test_a_refusal_is_told_in_the_stream(serve):
    async def scenario(client, engine):
        engine.refusals = [Overloaded("full")]
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        assert answer.status == 200
        assert '"error_type":"overloaded"' in await answer.text()
    serve(scenario)


def test_a_token_is_on_the_wire_before_the_next_one_exists(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        await engine.asked.wait()
        [stream] = engine.streams
        for letter in "wef":
            stream.put(TokenEvent(ord(letter), letter, -1.0, False))
            assert f'"text":"{letter}"'.encode() in await answer.content.readuntil(b"\n\n")
    serve(scenario, [])


def test_the_reader_of_a_cancelled_request_sees_that_the_end_is_missing(serve, caplog):
    async def scenario(client, engine):
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        await engine.asked.wait()
        engine.streams[0].put(FailedEvent(Cancelled("too slow")))
        with pytest.raises(ClientPayloadError):
            await answer.text()
    serve(scenario, [])
    assert not caplog.records


def test_a_client_that_reads_nothing_is_cut_off(serve, caplog):
    async def scenario(client, engine):
        answer = await client.post("/generate_stream", json={"inputs": "x"})
        answer.connection.transport.pause_reading()
        await engine.asked.wait()
        [stream] = engine.streams
        [handler] = [task for task in asyncio.all_tasks() if "_handle_request" in repr(task.get_coro())]
        while not stream.size:  # until it is stuck in a write
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
def test_a_client_that_leaves_cancels_its_request(serve, caplog, path):
    async def scenario(client, engine):
        asking = asyncio.create_task(client.post(path, json={"inputs": "x"}))
        await engine.asked.wait()
        asking.cancel()
        await client.session.close()
        await engine.left_alone.wait()
        assert engine.left == engine.requests
    serve(scenario, [])
    assert not caplog.records


def test_a_client_that_leaves_cancels_all_choices(serve):
    async def scenario(client, engine):
        asking = asyncio.create_task(client.post("/generate", json={
            "inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}))
        await engine.asked.wait()
        asking.cancel()
        await engine.left_alone.wait()
        assert len(engine.left) == 2
    serve(scenario, [], [])


# ---------------------------------------------------------------------------------------------------------------------
# POST /


def test_the_oldest_route_answers_with_an_array_of_one_and_repeats_the_prompt(post):
    assert json.loads(post("/", inputs="hi")[2]) == [{"generated_text": "hiweft"}]
    assert json.loads(post("/", inputs="hi", parameters={"return_full_text": False})[2]) == [
        {"generated_text": "weft"}]


def test_the_oldest_route_streams_if_it_is_asked_to(post):
    status, headers, text = post("/", inputs="hi", stream=True, parameters={"details": True})
    *_, last = [json.loads(line.removeprefix("data: ")) for line in text.removesuffix("\n\n").split("\n\n")]
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    assert (last["generated_text"], last["details"]["generated_tokens"]) == ("hiweft", 4)


def test_on_the_oldest_route_null_is_no_word_on_streaming(post):
    assert post("/", inputs="hi", stream=None)[0] == 422
