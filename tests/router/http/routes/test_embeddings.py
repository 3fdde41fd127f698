"""Embeddings over HTTP with the simulated shard: formats, rejections, cancellation and losses of shards."""

import asyncio
import json
from base64 import b64decode
from math import sqrt
from struct import unpack

import pytest
from support.scheduling.simulated_world import compute_expected_pooled
from support.servers.fake_adapter_store import FakeAdapterStore
from support.servers.in_process_server import play_scenario

from router.config import RouterConfig
from router.request import LoadableResource, Request, RequestKind

TEXT = "a loom"


def expected_vector(model, text=TEXT, adapter=None):
    tokens = tuple(text.encode()) if isinstance(text, str) else text
    return compute_expected_pooled(Request("r", tokens, 0, kind=RequestKind.EMBED, adapter=adapter), model)


def post_json(tmp_path, path, body, **settings):
    """Return status, answer, headers and the simulated model."""
    response_parts = []

    async def scenario(weft):
        async with weft.http_session.post(path, json=body) as answer:
            response_parts.extend((answer.status, json.loads(await answer.read()), answer.headers, weft.model))
        await weft.engine.wait_until_drained()

    play_scenario(scenario, tmp_path, http=True, **settings)
    return response_parts


def post_embed(tmp_path, **body):
    return post_json(tmp_path, "/embed", body)


def post_embeddings(tmp_path, *, compat="", settings=(), **body):
    return post_json(tmp_path, "/v1/embeddings", body, **({"compat": compat} if compat else {}), **dict(settings))


def test_embed_returns_the_vector_of_the_text(tmp_path):
    status, answer, headers, model = post_embed(tmp_path, inputs=TEXT, parameters=None, stream=False)
    assert (status, answer) == (200, {"embeddings": expected_vector(model)})
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("6", "0")
    assert headers["x-compute-characters"] == "6"


def test_openai_embeddings_take_several_inputs_and_count_their_tokens(tmp_path):
    status, answer, _, model = post_embeddings(tmp_path, input=[TEXT, [5, 6]], model="x")
    assert status == 200
    assert answer == {
        "object": "list", "model": "simulated", "usage": {"prompt_tokens": 8, "total_tokens": 8},
        "data": [{"object": "embedding", "index": 0, "embedding": expected_vector(model)},
                 {"object": "embedding", "index": 1, "embedding": expected_vector(model, (5, 6))}]}


@pytest.mark.parametrize("text_input", [TEXT, list(TEXT.encode())])
def test_single_input_needs_no_list(tmp_path, text_input):
    _, answer, _, model = post_embeddings(tmp_path, input=text_input)
    assert [row["embedding"] for row in answer["data"]] == [expected_vector(model)]


def test_base64_encoding_holds_the_same_numbers(tmp_path):
    _, answer, _, model = post_embeddings(tmp_path, input=TEXT, encoding_format="base64")
    assert list(unpack("<16f", b64decode(answer["data"][0]["embedding"]))) == expected_vector(model)


def test_truncated_dimensions_are_normalized_again(tmp_path):
    _, answer, _, model = post_embeddings(tmp_path, input=TEXT, dimensions=3)
    first = expected_vector(model)[:3]
    norm = sqrt(sum(value * value for value in first))
    assert answer["data"][0]["embedding"] == pytest.approx([value / norm for value in first])


def test_lorax_embeddings_have_their_own_format(tmp_path):
    _, answer, _, model = post_embeddings(tmp_path, compat="lorax", input=[TEXT])
    assert answer == {"embeddings": [{"object": "embedding", "index": 0, "embedding": expected_vector(model)}]}


@pytest.mark.parametrize(("body", "part"), [
    ({"input": []}, "input"), ({"input": ""}, "must not be an empty string"), ({"input": [[]]}, "input"),
    ({"input": 7}, "input"), ({"input": [TEXT, 7]}, "input"), ({"input": TEXT, "dimensions": 0}, "at least 1, got 0"),
    ({"input": TEXT, "dimensions": 17}, "at most 16 with this model, got 17"), ({"input": [700]}, "token 700"),
    ({"input": ["x"] * 2049}, "at most 2048 texts, got 2049"),
    ({"input": "x" * 41}, "at most 40 tokens (--max-batch-prefill-tokens), got 41"),
    ({"input": TEXT, "encoding_format": "hex"}, "encoding_format"), ({}, "input"),
    ({"input": TEXT, "parameters": {"adapter_id": "a", "merged_adapters": {"ids": ["a"]}}}, "at most one of"),
    ({"input": TEXT, "parameters": {"adapter_id": "a"}}, "served without adapters")])
def test_invalid_embedding_requests_are_rejected(tmp_path, body, part):
    status, answer, *_ = post_embeddings(
        tmp_path, settings={"max_client_batch_size": 4, "max_batch_prefill_tokens": 40, "block_size": 16,
                            "max_input_tokens": 100, "max_total_tokens": 200}, **body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert part in answer["error"]["message"]


@pytest.mark.parametrize("body", [
    {"input": "x", "dimensions": 0}, {"input": "x", "dimensions": 17}, {"input": "x" * 41}, {"input": ["x"] * 2049}])
def test_lorax_embedding_errors_have_status_400(tmp_path, body):
    status, answer, *_ = post_embeddings(tmp_path, compat="lorax", settings={"max_batch_prefill_tokens": 40}, **body)
    assert (status, answer["error_type"]) == (400, "invalid_input")
    assert answer["error"].startswith("Input validation error: ")


def test_lorax_embed_route_keeps_status_422(tmp_path):
    status, answer, *_ = post_json(tmp_path, "/embed", {"inputs": ""}, compat="lorax")
    assert (status, answer["error_type"]) == (422, "validation")


def test_model_without_embeddings_reports_what_it_serves(tmp_path):
    status, answer, *_ = post_json(tmp_path, "/embed", {"inputs": TEXT}, embedding_width=0, num_labels=3)
    assert (status, answer["error_type"]) == (422, "validation")
    assert answer["error"].endswith("this model does not make embeddings; it generates text (/generate, "
                                    "/v1/chat/completions) and labels tokens (/classify)")


@pytest.mark.parametrize(("path", "body"), [
    ("/generate", {"inputs": TEXT}), ("/v1/completions", {"prompt": TEXT}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]})])
def test_model_without_generation_reports_what_it_serves(tmp_path, path, body):
    status, answer, *_ = post_json(tmp_path, path, body, generation=False)
    assert status == (422 if path == "/generate" else 400)
    message = answer["error"] if path == "/generate" else answer["error"]["message"]
    assert message.endswith("does not generate text; it makes embeddings (/embed, /v1/embeddings)")


def test_shard_failure_is_a_server_error(tmp_path):
    status, answer, *_ = post_json(tmp_path, "/embed", {"inputs": TEXT}, faults="fail_sequence@embed")
    assert (status, answer["error_type"]) == (500, "embedding_failure")
    assert answer["error"] == "Embedding Failure: the model's output was not a number"


@pytest.mark.parametrize("name", ["", "__base_model__"])
def test_base_model_name_is_not_an_adapter(tmp_path, name):
    _, answer, _, model = post_embed(tmp_path, inputs=TEXT, parameters={"adapter_id": name})
    assert answer["embeddings"] == expected_vector(model)


def test_embedding_uses_the_requested_adapter(tmp_path):
    body = {"inputs": TEXT, "parameters": {"adapter_id": "a", "adapter_source": "hub", "api_token": "t"}}
    status, answer, _, model = post_json(tmp_path, "/embed", body, store=FakeAdapterStore())
    assert status == 200
    assert answer["embeddings"] in [expected_vector(model, adapter=LoadableResource("adapter", number))
                                    for number in (1, 2)]


def test_embedding_can_use_merged_adapters(tmp_path):
    merged = {"ids": ["a", "b"], "weights": [1, 0.5], "merge_strategy": "TIES", "density": 0.5}
    store = FakeAdapterStore()
    status, *_ = post_json(tmp_path, "/embed", {"inputs": TEXT, "parameters": {"merged_adapters": merged}}, store=store)
    (question,) = store.requests_of("merge")
    assert status == 200
    assert (question["strategy"], question["weights"], question["density"]) == ("ties", [1.0, 0.5], 0.5)


def test_disconnected_client_leaves_nothing_behind_and_others_are_served(tmp_path):
    async def scenario(weft):
        async def embed_text(text):
            async with weft.http_session.post("/embed", json={"inputs": text}) as answer:
                return json.loads(await answer.read())["embeddings"]
        first = asyncio.create_task(embed_text("x" * 30))
        await weft.gate.wait_for_step()
        submitted = weft.watch_scheduler_calls("submit")
        leaving, staying = asyncio.create_task(embed_text("leaves")), asyncio.create_task(embed_text("stays"))
        await submitted.get()
        await submitted.get()
        cancelled = weft.watch_scheduler_calls("cancel")
        leaving.cancel()
        await cancelled.get()
        weft.gate.release_all()
        assert await first == expected_vector(weft.model, "x" * 30)
        assert await staying == expected_vector(weft.model, "stays")
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, gated=True, look_ahead=1)


@pytest.mark.parametrize("faults", ["step_error@embed:1", "die@embed:1", "wrong@embed:1:token", "refuse@embed:1"])
def test_shard_losses_are_invisible_to_embedding_clients(tmp_path, faults):
    async def scenario(weft):
        async def embed_text(text):
            async with weft.http_session.post("/v1/embeddings", json={"input": [text, "company"]}) as answer:
                return [row["embedding"] for row in json.loads(await answer.read())["data"]]
        texts = ["one", "another", "a third"]
        answers = await asyncio.gather(*map(embed_text, texts), weft.generate_stream("generated meanwhile"))
        assert answers[:3] == [[expected_vector(weft.model, text), expected_vector(weft.model, "company")]
                               for text in texts]
        assert answers[3][-1]["generated_text"] == weft.compute_expected_text("generated meanwhile")
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, faults=faults)


def test_embedding_request_can_time_out(tmp_path):
    async def scenario(weft):
        first = asyncio.create_task(weft.generate("x", 3))
        await weft.gate.wait_for_step()
        async with weft.http_session.post("/embed", json={"inputs": TEXT},
                                          headers={"x-request-timeout-ms": "30"}) as answer:
            assert (answer.status, json.loads(await answer.read())["error_type"]) == (408, "timeout")
        weft.gate.release_all()
        (await first).close()

    play_scenario(scenario, tmp_path, http=True, gated=True, look_ahead=1)


ONLY_EMBEDDINGS = {"embeddings": True, "generation": False}


def post_to_root(serve, **body):
    async def scenario(client, engine):
        async with client.post("/", json=body) as answer:
            return answer.status, await answer.json(), [request.prompt for request in engine.requests]
    return serve(scenario, **ONLY_EMBEDDINGS)


@pytest.mark.parametrize(("inputs", "prompts"), [
    ("abc", [b"abc"]), (["abc", "d"], [b"abc", b"d"]), ([5, 6], [(5, 6)]), (["abc", [5, 6]], [b"abc", (5, 6)])])
def test_root_of_an_embedding_model_returns_a_list_of_vectors(serve, inputs, prompts):
    status, vectors, found = post_to_root(serve, inputs=inputs)
    assert (status, found) == (200, [tuple(prompt) for prompt in prompts])
    assert vectors == [[float(len(prompt)), *[0.0] * 15] for prompt in prompts]


@pytest.mark.parametrize(("fields", "vector"), [
    ({"normalize": True}, [1.0, *[0.0] * 15]), ({"normalize": False, "truncate": False}, [2.0, *[0.0] * 15]),
    ({"dimensions": 3}, [1.0, 0.0, 0.0])])
def test_root_of_an_embedding_model_normalizes_on_request(serve, fields, vector):
    assert post_to_root(serve, inputs="ab", **fields)[:2] == (200, [vector])


@pytest.mark.parametrize(("fields", "words"), [
    ({"inputs": []}, "`inputs`"), ({"inputs": ["a", ""]}, "`inputs` must not be an empty"), ({"inputs": 5}, "`inputs"),
    ({"inputs": ["a"] * 2049}, "`inputs` must hold at most 2048 texts, got 2049"),
    ({"truncate": True}, "`truncate` must be false, got true"), ({"prompt_name": "query"}, "`prompt_name` is given"),
    ({"dimensions": 3, "normalize": False}, "`normalize` must not be false"), ({"dimensions": 0}, "`dimensions`"),
    ({"dimensions": 17}, "`dimensions` must be at most 16")])
def test_root_of_an_embedding_model_names_invalid_fields(serve, fields, words):
    status, answer, _ = post_to_root(serve, **{"inputs": "a"} | fields)
    assert (status, words in answer["error"]) == (422, True), answer


def test_root_of_an_embedding_model_keeps_the_error_that_clients_of_lorax_know(serve):
    async def scenario(client, engine):
        async with client.post("/", json={"inputs": "a"}) as answer:
            text = await answer.text()
            assert (answer.status >= 400, "does not generate text" in text) == (True, True), text
    serve(scenario, **ONLY_EMBEDDINGS, config=RouterConfig(compat="lorax"))


def test_root_of_a_model_that_generates_too_is_that_of_tgi(serve):
    async def scenario(client, engine):
        async with client.post("/", json={"inputs": "a"}) as answer:
            assert await answer.json() == [{"generated_text": "aweft"}]
    serve(scenario, embeddings=True)
