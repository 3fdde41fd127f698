"""LoRAX's routes over a scripted engine."""

import json

import pytest
from support.servers.fake_adapter_store import FakeAdapterStore

from router.config import RouterConfig

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
