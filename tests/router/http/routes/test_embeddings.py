"""Embeddings over HTTP with the simulated shard: formats, rejections, cancellation and losses of shards."""

import asyncio
import json
from base64 import b64decode
from math import sqrt
from struct import unpack

import pytest
from support.fake_adapter_store import Store
from support.in_process_server import play
from support.simulated_world import expected_told

from router.request import Request, Resource, Wish

TEXT = "a loom"


def vector(model, text=TEXT, adapter=None):
    tokens = tuple(text.encode()) if isinstance(text, str) else text
    return expected_told(Request("r", tokens, 0, wish=Wish.VECTOR, adapter=adapter), model)


def told(tmp_path, path, body, **given):
    """Return status, answer, headers and the simulated model."""
    found = []

    async def story(weft):
        async with weft.http.post(path, json=body) as answer:
            found.extend((answer.status, json.loads(await answer.read()), answer.headers, weft.model))
        await weft.engine.drained()

    play(story, tmp_path, http=True, **given)
    return found


def embed(tmp_path, **body):
    return told(tmp_path, "/embed", body)


def embeddings(tmp_path, *, compat="", given=(), **body):
    return told(tmp_path, "/v1/embeddings", body, **({"compat": compat} if compat else {}), **dict(given))


def test_a_text_becomes_its_vector(tmp_path):
    status, answer, headers, model = embed(tmp_path, inputs=TEXT, parameters=None, stream=False)
    assert (status, answer) == (200, {"embeddings": vector(model)})
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("6", "0")
    assert headers["x-compute-characters"] == "6"


def test_openai_asks_for_several_and_hears_how_many_tokens_they_had(tmp_path):
    status, answer, _, model = embeddings(tmp_path, input=[TEXT, [5, 6]], model="x")
    assert status == 200
    assert answer == {
        "object": "list", "model": "simulated", "usage": {"prompt_tokens": 8, "total_tokens": 8},
        "data": [{"object": "embedding", "index": 0, "embedding": vector(model)},
                 {"object": "embedding", "index": 1, "embedding": vector(model, (5, 6))}]}


@pytest.mark.parametrize("given", [TEXT, list(TEXT.encode())])
def test_one_text_needs_no_list(tmp_path, given):
    _, answer, _, model = embeddings(tmp_path, input=given)
    assert [row["embedding"] for row in answer["data"]] == [vector(model)]


def test_bytes_of_base64_are_the_same_numbers(tmp_path):
    _, answer, _, model = embeddings(tmp_path, input=TEXT, encoding_format="base64")
    assert list(unpack("<16f", b64decode(answer["data"][0]["embedding"]))) == vector(model)


def test_the_first_dimensions_are_as_long_as_one_again(tmp_path):
    _, answer, _, model = embeddings(tmp_path, input=TEXT, dimensions=3)
    first = vector(model)[:3]
    norm = sqrt(sum(value * value for value in first))
    assert answer["data"][0]["embedding"] == pytest.approx([value / norm for value in first])


def test_lorax_has_a_shape_of_its_own(tmp_path):
    _, answer, _, model = embeddings(tmp_path, compat="lorax", input=[TEXT])
    assert answer == {"embeddings": [{"object": "embedding", "index": 0, "embedding": vector(model)}]}


@pytest.mark.parametrize(("body", "part"), [
    ({"input": []}, "input"), ({"input": ""}, "must not be an empty string"), ({"input": [[]]}, "input"),
    ({"input": 7}, "input"), ({"input": [TEXT, 7]}, "input"), ({"input": TEXT, "dimensions": 0}, "at least 1, got 0"),
    ({"input": TEXT, "dimensions": 17}, "at most 16 with this model, got 17"), ({"input": [700]}, "token 700"),
    ({"input": ["x"] * 2049}, "at most 2048 texts, got 2049"),
    ({"input": "x" * 41}, "at most 40 tokens (--max-batch-prefill-tokens), got 41"),
    ({"input": TEXT, "encoding_format": "hex"}, "encoding_format"), ({}, "input"),
    ({"input": TEXT, "parameters": {"adapter_id": "a", "merged_adapters": {"ids": ["a"]}}}, "at most one of"),
    ({"input": TEXT, "parameters": {"adapter_id": "a"}}, "served without adapters")])
def test_what_is_wrong_is_told(tmp_path, body, part):
    status, answer, *_ = embeddings(
        tmp_path, given={"max_client_batch_size": 4, "max_batch_prefill_tokens": 40, "block_size": 16,
                         "max_input_tokens": 100, "max_total_tokens": 200}, **body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert part in answer["error"]["message"]


@pytest.mark.parametrize("body", [
    {"input": "x", "dimensions": 0}, {"input": "x", "dimensions": 17}, {"input": "x" * 41}, {"input": ["x"] * 2049}])
def test_what_is_wrong_has_a_status_of_its_own_with_lorax(tmp_path, body):
    status, answer, *_ = embeddings(tmp_path, compat="lorax", given={"max_batch_prefill_tokens": 40}, **body)
    assert (status, answer["error_type"]) == (400, "invalid_input")
    assert answer["error"].startswith("Input validation error: ")


def test_lorax_has_it_on_no_other_route(tmp_path):
    status, answer, *_ = told(tmp_path, "/embed", {"inputs": ""}, compat="lorax")
    assert (status, answer["error_type"]) == (422, "validation")


def test_a_model_that_makes_none_says_what_it_does(tmp_path):
    status, answer, *_ = told(tmp_path, "/embed", {"inputs": TEXT}, embedding_width=0, num_labels=3)
    assert (status, answer["error_type"]) == (422, "validation")
    assert answer["error"].endswith("this model does not make embeddings; it generates text (/generate, "
                                    "/v1/chat/completions) and labels tokens (/classify)")


@pytest.mark.parametrize(("path", "body"), [
    ("/generate", {"inputs": TEXT}), ("/v1/completions", {"prompt": TEXT}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]})])
def test_a_model_that_generates_nothing_says_what_it_does(tmp_path, path, body):
    status, answer, *_ = told(tmp_path, path, body, generation=False)
    assert status == (422 if path == "/generate" else 400)
    message = answer["error"] if path == "/generate" else answer["error"]["message"]
    assert message.endswith("does not generate text; it makes embeddings (/embed, /v1/embeddings)")


def test_what_fails_on_a_shard_is_a_failure_of_the_server(tmp_path):
    status, answer, *_ = told(tmp_path, "/embed", {"inputs": TEXT}, faults="fail_sequence@embed")
    assert (status, answer["error_type"]) == (500, "embedding_failure")
    assert answer["error"] == "Embedding Failure: the model's output was not a number"


@pytest.mark.parametrize("name", ["", "__base_model__"])
def test_the_model_itself_is_no_adapter(tmp_path, name):
    _, answer, _, model = embed(tmp_path, inputs=TEXT, parameters={"adapter_id": name})
    assert answer["embeddings"] == vector(model)


def test_an_adapter_is_gone_by(tmp_path):
    body = {"inputs": TEXT, "parameters": {"adapter_id": "a", "adapter_source": "hub", "api_token": "t"}}
    status, answer, _, model = told(tmp_path, "/embed", body, store=Store())
    assert status == 200
    assert answer["embeddings"] in [vector(model, adapter=Resource("adapter", number)) for number in (1, 2)]


def test_adapters_may_be_merged_for_it(tmp_path):
    merged = {"ids": ["a", "b"], "weights": [1, 0.5], "merge_strategy": "TIES", "density": 0.5}
    store = Store()
    status, *_ = told(tmp_path, "/embed", {"inputs": TEXT, "parameters": {"merged_adapters": merged}}, store=store)
    (question,) = store.asked("merge")
    assert status == 200
    assert (question["strategy"], question["weights"], question["density"]) == ("ties", [1.0, 0.5], 0.5)


def test_whoever_leaves_leaves_nothing_behind_and_others_are_answered(tmp_path):
    async def story(weft):
        async def ask(text):
            async with weft.http.post("/embed", json={"inputs": text}) as answer:
                return json.loads(await answer.read())["embeddings"]
        first = asyncio.create_task(ask("x" * 30))
        await weft.gate.arrival()
        submitted = weft.watch("submit")
        left, other = asyncio.create_task(ask("leaves")), asyncio.create_task(ask("stays"))
        await submitted.get()
        await submitted.get()
        cancelled = weft.watch("cancel")
        left.cancel()
        await cancelled.get()
        weft.gate.open()
        assert await first == vector(weft.model, "x" * 30)
        assert await other == vector(weft.model, "stays")
        await weft.check_idle()

    play(story, tmp_path, http=True, gated=True, look_ahead=1)


@pytest.mark.parametrize("faults", ["step_error@embed:1", "die@embed:1", "wrong@embed:1:token", "refuse@embed:1"])
def test_losses_are_not_noticed_by_clients(tmp_path, faults):
    async def story(weft):
        async def ask(text):
            async with weft.http.post("/v1/embeddings", json={"input": [text, "company"]}) as answer:
                return [row["embedding"] for row in json.loads(await answer.read())["data"]]
        texts = ["one", "another", "a third"]
        heard = await asyncio.gather(*map(ask, texts), weft.stream("generated meanwhile"))
        assert heard[:3] == [[vector(weft.model, text), vector(weft.model, "company")] for text in texts]
        assert heard[3][-1]["generated_text"] == weft.expected_text("generated meanwhile")
        await weft.check_idle()

    play(story, tmp_path, http=True, faults=faults)


def test_its_time_may_run_out(tmp_path):
    async def story(weft):
        first = asyncio.create_task(weft.generate("x", 3))
        await weft.gate.arrival()
        async with weft.http.post("/embed", json={"inputs": TEXT}, headers={"x-request-timeout-ms": "30"}) as answer:
            assert (answer.status, json.loads(await answer.read())["error_type"]) == (408, "timeout")
        weft.gate.open()
        (await first).close()

    play(story, tmp_path, http=True, gated=True, look_ahead=1)
