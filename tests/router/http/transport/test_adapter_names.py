"""Adapter names in requests and response headers."""

import json

import pytest
from pydantic import ValidationError
from support.fake_adapter_store import Store

from router.adapters.reference import Merged, Named
from router.config import RouterConfig
from router.http.transport.adapter_names import Adapted, called, is_base

HELLO = {"messages": [{"role": "user", "content": "hi"}]}
BODIES = {"/generate": {"inputs": "hi"}, "/v1/chat/completions": HELLO, "/v1/completions": {"prompt": "hi"}}
KEPT = RouterConfig(preloaded_adapter_ids=("mine=a",), adapter_source="local")


def adapter(token="", **given):
    return Adapted.model_validate(given).adapter(token)


def naming(path, name, **more):
    """Return a body of the route that names an adapter in the route's own field."""
    return BODIES[path] | ({"parameters": {"adapter_id": name, **more}} if path == "/generate" else
                           {"model": name, **more})


@pytest.mark.parametrize("name", [None, "", "__base_model__"])
def test_the_model_itself_has_names_too(name):
    assert adapter(adapter_id=name) is None


def test_an_adapter_has_a_source_and_the_token_of_its_client():
    assert adapter(adapter_id="a") == Named("a")
    assert adapter(adapter_id="a", adapter_source="") == Named("a")
    assert adapter(adapter_id="a", adapter_source="s3") == Named("a", "s3")
    assert (adapter("theirs", adapter_id="a").token, adapter("theirs", adapter_id="a", api_token="x").token) == (
        "theirs", "x")


def test_several_are_merged_of_one_source():
    given = {"ids": ["a", "b"], "weights": [1, 0.5], "merge_strategy": "DARE_ties", "density": 0.5}
    assert adapter(merged_adapters=given, adapter_source="hub") == Merged(
        (Named("a", "hub"), Named("b", "hub")), (1.0, 0.5), "dare_ties", 0.5)
    assert adapter(merged_adapters={"ids": ["a"]}) == Merged((Named("a"),), ())


def test_a_token_is_not_shown():
    assert "mine" not in repr(Adapted(api_token="mine")) + repr(adapter(adapter_id="a", api_token="mine"))


@pytest.mark.parametrize("given", [{"ids": []}, {"ids": ["a"], "density": None}, {}], ids=str)
def test_what_is_not_there_is_not_made_up(given):
    if given == {"ids": []}:
        assert adapter(merged_adapters=given) == Merged((), ())
    else:
        with pytest.raises(ValidationError):
            Adapted.model_validate({"merged_adapters": given})


@pytest.mark.parametrize("name", [
    None, "", "tgi", "dummy", "base", "__base_model__", "org/model", "http://127.0.0.1:3000", "HTTPS://host/v1"])
def test_names_that_clients_have_for_the_model(name):
    assert is_base(name, "org/model")


@pytest.mark.parametrize("name", ["org/adapter", "model", "s3://bucket/a", "Base"])
def test_any_other_name_is_an_adapters(name):
    assert not is_base(name, "org/model")


def test_what_is_no_name_is_not_told():
    assert called(None, Named("a")) is None


# -- in requests


@pytest.mark.parametrize("path", BODIES)
def test_a_request_goes_by_the_adapter_that_it_names_and_its_head_says_so(serve, path):
    async def scenario(client, engine):
        for stream in (False, True):
            route = "/generate_stream" if (path, stream) == ("/generate", True) else path
            for name, told in (("b", ("b", "local")), ("mine", ("a", "local"))):
                answer = await client.post(route, json=naming(path, name) | {"stream": stream})
                assert (answer.headers["x-adapter-id"], answer.headers["x-adapter-source"]) == told
            answer = await client.post(route, json=BODIES[path] | {"stream": stream})
            assert "x-adapter-id" not in answer.headers
        return [request.adapter is not None for request in engine.requests]
    assert serve(scenario, store=Store(), config=KEPT) == [True, True, False] * 2


@pytest.mark.parametrize("path", BODIES)
def test_the_token_of_a_client_goes_where_its_adapter_comes_from(serve, path):
    async def scenario(client, _):
        for more in ({}, {"api_token": "key"}):
            answer = await client.post(
                path, json=naming(path, "secret", **more), headers={"Authorization": "Bearer hf_x"})
            assert (answer.status == 200) == bool(more)
    store = Store()
    serve(scenario, store=store)
    assert [fetch["token"] for fetch in store.asked("fetch")] == ["hf_x", "key"]


@pytest.mark.parametrize("path", BODIES)
def test_a_key_of_ours_never_goes_there(serve, path):
    async def scenario(client, _):
        answer = await client.post(path, json=naming(path, "b"), headers={"Authorization": "Bearer sk-one"})
        assert answer.status == 200
    store = Store()
    serve(scenario, store=store, config=RouterConfig(api_key="sk-one"))
    assert [fetch["token"] for fetch in store.asked("fetch")] == [""]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_model_that_is_not_there_is_told_with_those_that_are(post, path):
    for stream in (False, True):
        status, _, text = post(path, store=Store(), config=KEPT, **naming(path, "c"), stream=stream)
        error = json.loads(text)["error"]
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"].endswith("`model` may be loom, mine")


def test_a_model_may_be_of_another_source_and_is_told_as_it_was_asked_for(post):
    store = Store()
    status, _, text = post("/v1/chat/completions", store=store, **naming("/v1/chat/completions", "b"),
                           adapter_source="s3")
    assert (status, json.loads(text)["model"]) == (200, "b")
    assert store.asked("fetch")[0]["source"] == "s3"


def test_without_adapters_a_model_has_any_name(post):
    assert post("/v1/completions", **naming("/v1/completions", "whatever"))[0] == 200


def test_instances_of_vertex_go_by_adapters_too(serve):
    async def scenario(client, engine):
        instances = [naming("/generate", "a"), naming("/v1/chat/completions", "b")]
        assert (await client.post("/vertex", json={"instances": instances})).status == 200
        return [request.adapter is not None for request in engine.requests]
    assert serve(scenario, store=Store()) == [True, True]


def test_one_adapter_or_several(post):
    parameters = {"adapter_id": "a", "merged_adapters": {"ids": ["a"], "weights": [1]}}
    for path in ("/generate", "/generate_stream"):
        _, _, text = post(path, store=Store(), inputs="hi", parameters=parameters)
        assert "`adapter_id` and `merged_adapters` are given; give one of them" in text


def test_a_head_is_not_longer_than_clients_take(post):
    name = "a" * 500
    merged = {"ids": [name] * 16, "weights": [1.0] * 16}
    _, headers, _ = post("/generate", store=Store(name), inputs="hi", parameters={"merged_adapters": merged})
    assert len(headers["x-adapter-id"]) == 2048
