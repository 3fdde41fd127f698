"""Server and model information (/info, /v1/models)."""

import pytest
from support.fake_adapter_store import Store

from router.config import RouterConfig
from router.http.transport.generate import About


@pytest.mark.parametrize(("about", "told"), [
    (About(), ("loom", None)), (About("weft/demo"), ("weft/demo", None)), (About("a", "is old"), ("a", "is old"))])
def test_it_tells_the_name_and_what_users_should_know_of_a_model(serve, about, told):
    async def scenario(client, _):
        info = await (await client.get("/info")).json()
        assert (info["model_id"], info["notice"]) == told
    serve(scenario, about=about)


def test_it_tells_model_and_effective_limits(serve):
    async def scenario(client, engine):
        info = await (await client.get("/info")).json()
        assert [info[name] for name in ("model_id", "model_dtype", "model_device_type", "num_shard")] == [
            "loom", "float32", "cpu", 1]
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (1599, 1600)
        assert [info[name] for name in (
            "max_best_of", "max_stop_sequences", "validation_workers", "max_client_batch_size")] == [2, 4, 1, 3]
        assert {"model_sha", "model_pipeline_tag", "max_concurrent_requests", "router", "version", "sha",
                "docker_label"} <= set(info)
    serve(scenario, config=RouterConfig(validation_workers=1, max_client_batch_size=3))


def test_the_model_is_listed_as_clients_of_openai_expect_it(serve):
    async def scenario(client, _):
        assert await (await client.get("/v1/models")).json() == {"object": "list", "data": [
            {"id": "a/b", "object": "model", "created": 0, "owned_by": "a/b"}]}
    serve(scenario, about=About("a/b"))


def adapter(name, root):
    return {"id": name, "object": "model", "created": 0, "owned_by": "loom", "root": root, "parent": "loom"}


@pytest.mark.parametrize(("key", "others"), [("", [adapter("b", "b")]), ("sk-one", [])])
def test_adapters_are_listed_but_not_what_tenants_use_nor_what_is_private(serve, key, others):
    async def scenario(client, _):
        for name in ("b", "secret", "mine"):
            body = {"inputs": "x", "parameters": {"adapter_id": name, "api_token": "key"}}
            answer = await client.post("/generate", json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status == 200
        base, *adapters = (await (await client.get("/v1/models")).json())["data"]
        assert base == {"id": "loom", "object": "model", "created": 0, "owned_by": "loom"}
        assert adapters == [*others, adapter("mine", "a")]
    config = RouterConfig(api_key=key, preloaded_adapter_ids=("mine=a",))
    serve(scenario, store=Store(), config=config)
