"""What is served, in the format of Ollama's routes about models."""

import json
from hashlib import sha256

import pytest
from support.servers.fake_adapter_store import FakeAdapterStore

from router.config import RouterConfig
from router.http.transport.services import ServedModel
from router.text.chat_template import ChatTemplate

ADAPTER_OPTIONS = {"store": FakeAdapterStore(), "config": RouterConfig(preloaded_adapter_ids=("mine=a",))}
TOOL_TEMPLATE = ChatTemplate("{{ tools }}<tool_call><think></think>", {})


def get_json(serve, path, **serve_options):
    async def scenario(client, _):
        answer = await client.get(path)
        assert answer.status == 200
        return await answer.json()
    return serve(scenario, **serve_options)


def show(serve, body, **serve_options):
    async def scenario(client, _):
        answer = await client.post("/api/show", json=body)
        return answer.status, await answer.json()
    return serve(scenario, **serve_options)


def test_tags_list_the_model_and_its_adapters(serve):
    base, adapter = get_json(serve, "/api/tags", **ADAPTER_OPTIONS)["models"]
    details = {"parent_model": "", "format": "safetensors", "family": "", "families": [], "parameter_size": "",
               "quantization_level": ""}
    assert base.pop("modified_at")[:2] == "20"
    assert base == {"name": "loom", "model": "loom", "size": 0, "digest": sha256(b"loom").hexdigest(),
                    "details": details}
    assert (adapter["name"], adapter["details"]) == ("mine", details | {"parent_model": "loom"})


def test_ps_lists_the_same_as_never_unloaded(serve):
    [model] = get_json(serve, "/api/ps", served_model=ServedModel("a/b"))["models"]
    assert (model["name"], model["context_length"], model["size_vram"]) == ("a/b", 1600, 0)
    assert model["expires_at"].startswith("9999")


def test_every_name_of_the_model_is_listed_and_shown(serve):
    served_model = ServedModel("gpt-4o", other_names=("llama3:latest",))
    models = get_json(serve, "/api/tags", served_model=served_model)["models"]
    assert [(model["name"], model["details"]["parent_model"]) for model in models] == [
        ("gpt-4o", ""), ("llama3:latest", "")]


def test_version_is_that_of_the_server(serve):
    assert get_json(serve, "/api/version") == get_json(serve, "/version")


@pytest.mark.parametrize("body", [{"model": "loom"}, {"name": "loom:latest"}, {"model": "anything"}])
def test_show_describes_the_model(serve, body):
    status, shown = show(serve, body, template=TOOL_TEMPLATE, embeddings=True)
    assert status == 200
    assert (shown["template"], shown["modelfile"]) == (TOOL_TEMPLATE.source, "")
    assert shown["model_info"] == {"general.architecture": "transformer", "general.basename": "loom",
                                   "transformer.context_length": 1600}
    assert shown["capabilities"] == ["completion", "embedding", "tools", "thinking"]


def test_show_of_a_plain_model(serve):
    _, shown = show(serve, {"model": "loom"}, template=None)
    assert (shown["template"], shown["capabilities"]) == ("", ["completion"])


def test_model_that_fills_in_the_middle_can_insert(serve, infill_tokenizer):
    async def scenario(client, _):
        shown = await (await client.post("/api/show", json={"model": "loom"})).json()
        assert shown["capabilities"] == ["completion", "insert"]
    serve(scenario, template=None, tokenizer=infill_tokenizer)


@pytest.mark.parametrize("model", ["mine", "a:latest", "b"])
def test_show_knows_adapters_that_requests_may_name(serve, model):
    status, shown = show(serve, {"model": model}, **ADAPTER_OPTIONS)
    assert (status, shown["details"]["parent_model"]) == (200, "loom")
    assert shown["model_info"]["general.basename"] == model.removesuffix(":latest")


@pytest.mark.parametrize("model", ["c", "secret"])
def test_show_knows_no_others(serve, model):
    status, error = show(serve, {"model": model}, **ADAPTER_OPTIONS)
    assert status == 404
    assert error["error"].startswith(f"model '{model}' not found: ")


@pytest.mark.parametrize("body", [{}, {"model": ""}, {"model": None}])
def test_show_needs_a_name(serve, body):
    status, error = show(serve, body)
    assert (status, error["error"].partition(" ")[0]) == (400, "`model`")


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"),
                                              ("POST", "/api/copy"), ("DELETE", "/api/delete")])
def test_changes_of_models_are_refused_with_what_is_served(serve, method, path):
    async def scenario(client, _):
        answer = await client.request(method, path, json={"model": "x"})
        assert (answer.status, json.loads(await answer.text())) == (501, {
            "error": f"{method} {path} is not served: this server has loom, which was chosen when it was started "
                     "(weft serve MODEL)"})
    serve(scenario)


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version"])
def test_lists_need_no_key(serve, path):
    assert get_json(serve, path, config=RouterConfig(api_key="sk-one"))
