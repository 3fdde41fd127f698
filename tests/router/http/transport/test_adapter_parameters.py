"""Adapter names in requests and response headers."""

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError
from support.servers.fake_adapter_store import FakeAdapterStore

from router.adapters.reference import AdapterReference, MergedAdapterReference
from router.config import RouterConfig
from router.http.transport.body import AdapterParameters, adapter_for_stream_headers, is_base_model

CHAT_BODY = {"messages": [{"role": "user", "content": "hi"}]}
BODY_BY_PATH = {"/generate": {"inputs": "hi"}, "/v1/chat/completions": CHAT_BODY, "/v1/completions": {"prompt": "hi"}}
PRELOADED_CONFIG = RouterConfig(preloaded_adapter_ids=("mine=a",), adapter_source="local")


def read_adapter_reference(token="", **fields):
    return AdapterParameters.model_validate(fields).adapter_reference(token)


def body_with_adapter(path, name, **fields):
    """Return a body of the route that names an adapter in the route's own field."""
    return BODY_BY_PATH[path] | ({"parameters": {"adapter_id": name, **fields}} if path == "/generate"
                                 else {"model": name, **fields})


@pytest.mark.parametrize("name", [None, "", "__base_model__"])
def test_base_model_names_are_not_adapters(name):
    assert read_adapter_reference(adapter_id=name) is None


def test_adapter_reference_has_the_source_and_the_client_token():
    assert read_adapter_reference(adapter_id="a") == AdapterReference("a")
    assert read_adapter_reference(adapter_id="a", adapter_source="") == AdapterReference("a")
    assert read_adapter_reference(adapter_id="a", adapter_source="s3") == AdapterReference("a", "s3")
    assert (read_adapter_reference("theirs", adapter_id="a").source_token,
            read_adapter_reference("theirs", adapter_id="a", api_token="x").source_token) == ("theirs", "x")


def test_merged_adapters_share_one_source():
    merged_adapters = {"ids": ["a", "b"], "weights": [1, 0.5], "merge_strategy": "DARE_ties", "density": 0.5}
    assert read_adapter_reference(merged_adapters=merged_adapters, adapter_source="hub") == MergedAdapterReference(
        (AdapterReference("a", "hub"), AdapterReference("b", "hub")), (1.0, 0.5), "dare_ties", 0.5)
    assert (read_adapter_reference(merged_adapters={"ids": ["a"]})
            == MergedAdapterReference((AdapterReference("a"),), ()))


def test_source_token_is_not_in_the_repr():
    assert "mine" not in repr(AdapterParameters(api_token="mine")) + repr(read_adapter_reference(adapter_id="a",
                                                                                                 api_token="mine"))


@pytest.mark.parametrize("merged_adapters", [{"ids": []}, {"ids": ["a"], "density": None}, {}], ids=str)
def test_missing_merge_fields_are_not_filled_in(merged_adapters):
    if merged_adapters == {"ids": []}:
        assert read_adapter_reference(merged_adapters=merged_adapters) == MergedAdapterReference((), ())
    else:
        with pytest.raises(ValidationError):
            AdapterParameters.model_validate({"merged_adapters": merged_adapters})


@pytest.mark.parametrize("name", [
    None, "", "tgi", "dummy", "base", "__base_model__", "org/model", "http://127.0.0.1:3000", "HTTPS://host/v1"])
def test_base_model_names_are_recognized(name):
    assert is_base_model(name, ("gpt-4o", "org/model"))


@pytest.mark.parametrize("name", ["org/adapter", "model", "s3://bucket/a", "Base"])
def test_other_names_belong_to_adapters(name):
    assert not is_base_model(name, ("org/model",))


def test_adapter_name_is_unknown_without_a_registry():
    assert adapter_for_stream_headers(None, AdapterReference("a")) is None


# -- in requests


@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_request_uses_the_adapter_it_names_and_headers_report_it(serve, path):
    async def scenario(client, engine):
        for stream in (False, True):
            route = "/generate_stream" if (path, stream) == ("/generate", True) else path
            for name, expected in (("b", ("b", "local")), ("mine", ("a", "local"))):
                answer = await client.post(route, json=body_with_adapter(path, name) | {"stream": stream})
                assert (answer.headers["x-adapter-id"], answer.headers["x-adapter-source"]) == expected
            answer = await client.post(route, json=BODY_BY_PATH[path] | {"stream": stream})
            assert "x-adapter-id" not in answer.headers
        return [request.adapter is not None for request in engine.requests]
    assert serve(scenario, store=FakeAdapterStore(), config=PRELOADED_CONFIG) == [True, True, False] * 2


@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_client_token_is_sent_to_the_adapter_source(serve, path):
    async def scenario(client, _):
        for more in ({}, {"api_token": "key"}):
            answer = await client.post(
                path, json=body_with_adapter(path, "secret", **more), headers={"Authorization": "Bearer hf_x"})
            assert (answer.status == 200) == bool(more)
    store = FakeAdapterStore()
    serve(scenario, store=store)
    assert [fetch["token"] for fetch in store.requests_of("fetch")] == ["hf_x", "key"]


@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_api_key_is_never_sent_to_the_adapter_source(serve, path):
    async def scenario(client, _):
        answer = await client.post(path, json=body_with_adapter(path, "b"), headers={"Authorization": "Bearer sk-one"})
        assert answer.status == 200
    store = FakeAdapterStore()
    serve(scenario, store=store, config=RouterConfig(api_key="sk-one"))
    assert [fetch["token"] for fetch in store.requests_of("fetch")] == [""]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_unknown_model_error_lists_the_available_models(post, path):
    for stream in (False, True):
        status, _, text = post(path, store=FakeAdapterStore(), config=PRELOADED_CONFIG, **body_with_adapter(path, "c"),
                               stream=stream)
        error = json.loads(text)["error"]
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "`model` may be loom, mine, b, secret or the name of an adapter (" in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_unknown_model_error_names_no_more_than_the_list_of_models(serve, path):
    """With keys, `/v1/models` has only aliases: others would reveal what tenants use."""
    async def scenario(client, _):
        key = {"Authorization": "Bearer sk-one"}
        async with client.post(path, json=body_with_adapter(path, "b"), headers=key) as answer:
            assert answer.status == 200
        async with client.post(path, json=body_with_adapter(path, "c"), headers=key) as answer:
            message = (await answer.json())["error"]["message"]
        assert "`model` may be loom, mine or the name of an adapter (" in message
    serve(scenario, store=FakeAdapterStore(), config=replace(PRELOADED_CONFIG, api_key="sk-one"))


def test_model_with_another_adapter_source_is_echoed_as_requested(post):
    store = FakeAdapterStore()
    status, _, text = post("/v1/chat/completions", store=store, **body_with_adapter("/v1/chat/completions", "b"),
                           adapter_source="s3")
    assert (status, json.loads(text)["model"]) == (200, "b")
    assert store.requests_of("fetch")[0]["source"] == "s3"


def test_any_model_name_is_accepted_without_adapters(post):
    assert post("/v1/completions", **body_with_adapter("/v1/completions", "whatever"))[0] == 200


def test_vertex_instances_can_use_adapters(serve):
    async def scenario(client, engine):
        instances = [body_with_adapter("/generate", "a"), body_with_adapter("/v1/chat/completions", "b")]
        assert (await client.post("/vertex", json={"instances": instances})).status == 200
        return [request.adapter is not None for request in engine.requests]
    assert serve(scenario, store=FakeAdapterStore()) == [True, True]


def test_adapter_id_and_merged_adapters_are_mutually_exclusive(post):
    parameters = {"adapter_id": "a", "merged_adapters": {"ids": ["a"], "weights": [1]}}
    for path in ("/generate", "/generate_stream"):
        _, _, text = post(path, store=FakeAdapterStore(), inputs="hi", parameters=parameters)
        assert "`adapter_id` and `merged_adapters` are given; give one of them" in text


def test_adapter_header_length_is_limited(post):
    name = "a" * 500
    merged = {"ids": [name] * 16, "weights": [1.0] * 16}
    _, headers, _ = post("/generate", store=FakeAdapterStore(name), inputs="hi", parameters={"merged_adapters": merged})
    assert len(headers["x-adapter-id"]) == 2048
