"""Server and model information (/info, /v1/models)."""

import pytest
from support.servers.fake_adapter_store import FakeAdapterStore

from router.config import RouterConfig
from router.http.transport.services import ServedModel


@pytest.mark.parametrize(("served_model", "expected"),
                         [(ServedModel(), ("loom", None)), (ServedModel("weft/demo"), ("weft/demo", None)),
                          (ServedModel("a", "is old"), ("a", "is old"))])
def test_info_reports_the_model_name_and_notice(serve, served_model, expected):
    async def scenario(client, _):
        info = await (await client.get("/info")).json()
        assert (info["model_id"], info["notice"]) == expected
    serve(scenario, served_model=served_model)


def test_info_reports_the_model_and_effective_limits(serve):
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


def test_model_list_has_the_openai_format(serve):
    async def scenario(client, _):
        assert await (await client.get("/v1/models")).json() == {"object": "list", "data": [
            {"id": "a/b", "object": "model", "created": 0, "owned_by": "a/b", "root": "a/b", "parent": None,
             "max_model_len": 1600}]}
    serve(scenario, served_model=ServedModel("a/b"))


def test_every_name_of_the_model_is_listed(serve):
    async def scenario(client, _):
        [first, second] = (await (await client.get("/v1/models")).json())["data"]
        assert (first["id"], second["id"], second["root"], second["parent"]) == ("gpt-4o", "qwen", "gpt-4o", None)
        assert await (await client.get("/v1/models/qwen")).json() == second
    serve(scenario, served_model=ServedModel("gpt-4o", other_names=("qwen",)))


def test_one_model_can_be_asked_for(serve):
    async def scenario(client, _):
        [listed] = (await (await client.get("/v1/models")).json())["data"]
        assert await (await client.get("/v1/models/a/b")).json() == listed
        answer = await client.get("/v1/models/c")
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == "this server has no model 'c', only a/b"
    serve(scenario, served_model=ServedModel("a/b"))


def test_models_have_the_format_of_anthropic_for_its_clients(serve):
    async def scenario(client, _):
        headers = {"anthropic-version": "2023-06-01"}
        model = {"type": "model", "id": "a/b", "display_name": "a/b", "created_at": "1970-01-01T00:00:00Z",
                 "lifecycle": "active", "max_input_tokens": 1599}
        assert await (await client.get("/v1/models", headers=headers)).json() == {
            "data": [model], "has_more": False, "first_id": "a/b", "last_id": "a/b"}
        assert await (await client.get("/v1/models/a/b", headers=headers)).json() == model
    serve(scenario, served_model=ServedModel("a/b"))


def adapter_json(name, root):
    return {"id": name, "object": "model", "created": 0, "owned_by": "loom", "root": root, "parent": "loom",
            "max_model_len": 1600}


@pytest.mark.parametrize(("key", "other_adapters"), [("", [adapter_json("b", "b")]), ("sk-one", [])])
def test_model_list_omits_private_adapters_and_those_used_by_tenants(serve, key, other_adapters):
    async def scenario(client, _):
        for name in ("b", "secret", "mine"):
            body = {"inputs": "x", "parameters": {"adapter_id": name, "api_token": "key"}}
            answer = await client.post("/generate", json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status == 200
        base, *adapters = (await (await client.get("/v1/models")).json())["data"]
        assert (base["id"], base["root"], base["parent"]) == ("loom", "loom", None)
        assert adapters == [*other_adapters, adapter_json("mine", "a")]
    config = RouterConfig(api_key=key, preloaded_adapter_ids=("mine=a",))
    serve(scenario, store=FakeAdapterStore(), config=config)


@pytest.mark.parametrize(("key", "source", "names"), [("", "local", ["a", "b", "secret"]), ("", "hub", []),
                                                      ("sk-one", "local", [])])
def test_local_adapters_are_listed_before_they_are_used(serve, key, source, names):
    async def scenario(client, _):
        _, *adapters = (await (await client.get("/v1/models")).json())["data"]
        assert adapters == [adapter_json(name, name) for name in names]
        tags = await (await client.get("/api/tags")).json()
        assert [model["name"] for model in tags["models"]] == ["loom", *names]
        if names:
            body = {"model": "c", "prompt": "x"}
            error = (await (await client.post("/v1/completions", json=body)).json())["error"]
            assert "`model` may be loom, a, b, secret or the name of an adapter" in error["message"]
    serve(scenario, store=FakeAdapterStore(), config=RouterConfig(api_key=key, adapter_source=source))


def test_use_of_an_adapter_does_not_change_the_order_of_the_list(serve):
    async def scenario(client, _):
        await client.post("/v1/completions", json={"model": "b", "prompt": "x"})
        models = (await (await client.get("/v1/models")).json())["data"]
        assert [model["id"] for model in models] == ["loom", "a", "b", "secret"]
    serve(scenario, store=FakeAdapterStore(), config=RouterConfig(adapter_source="local"))


def test_version_is_answered_in_the_format_of_vllm(serve):
    async def scenario(client, _):
        info = await (await client.get("/info")).json()
        assert await (await client.get("/version")).json() == {"version": info["version"]}
    serve(scenario)


@pytest.mark.parametrize("compat", ["tgi", "lorax"])
def test_unknown_model_is_not_found_in_other_formats_either(serve, compat):
    async def scenario(client, _):
        answer = await client.get("/v1/models/c")
        assert (answer.status, "this server has no model 'c', only loom" in await answer.text()) == (404, True)
    serve(scenario, config=RouterConfig(compat=compat))
