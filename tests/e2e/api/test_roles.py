"""Tests of API keys and their roles over HTTP: the changes a tenant may make to adapters that others use."""

import json

import pytest
from support.servers.fake_adapter_store import FakeAdapterStore
from support.servers.in_process_server import make_generate_body, play_scenario

USER_KEYS = {"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}}
USER_AND_ADMIN_KEYS = USER_KEYS | {"sk-op": {"tenant": "op", "role": "admin"}}
ADAPTER_CHANGES = {
    "alias": ("POST", "/v1/adapters", {"id": "good", "alias": "victim"}),
    "load": ("POST", "/v1/adapters", {"id": "victim"}),
    "unload": ("DELETE", "/v1/adapters/victim", None),
    "load as vLLM": ("POST", "/v1/load_lora_adapter",
                     {"lora_name": "victim", "lora_path": "good", "load_inplace": True}),
    "unload as vLLM": ("POST", "/v1/unload_lora_adapter", {"lora_name": "victim"}),
}


def make_auth_headers(key):
    return {"Authorization": f"Bearer {key}"}


async def generate_text(weft, api_key, adapter_name):
    answer = await weft.http_session.post("/generate", json=make_generate_body("a loom", adapter_id=adapter_name),
                                          headers=make_auth_headers(api_key))
    assert answer.status == 200, await answer.text()
    return (await answer.json())["generated_text"]


async def list_adapters(weft, api_key):
    answer = await weft.http_session.get("/v1/adapters", headers=make_auth_headers(api_key))
    return {(adapter["id"], adapter["alias"]) for adapter in (await answer.json())["data"]}


def write_keys_file(folder, keys):
    (folder / "keys").write_text(json.dumps(keys))
    return str(folder / "keys")


@pytest.mark.parametrize("change", ADAPTER_CHANGES)
def test_user_key_cannot_change_adapters_of_other_tenants(tmp_path, change):
    method, path, body = ADAPTER_CHANGES[change]

    async def scenario(weft):
        before, good = await generate_text(weft, "sk-b", "victim"), await generate_text(weft, "sk-b", "good")
        assert before != good
        answer = await weft.http_session.request(method, path, json=body, headers=make_auth_headers("sk-a"))
        assert answer.status == 403
        assert "needs an admin key" in (await answer.json())["error"]["message"]
        assert await list_adapters(weft, "sk-b") == {("victim", None), ("good", None)}
        assert await generate_text(weft, "sk-b", "victim") == before
    play_scenario(scenario, tmp_path, http=True, store=FakeAdapterStore("good", "victim"),
                  api_keys=write_keys_file(tmp_path, USER_KEYS))


@pytest.mark.parametrize("key", ["sk-op", "sk-single"])
def test_admin_key_can_add_aliases_but_not_taken_ones(tmp_path, key):
    async def scenario(weft):
        before = await generate_text(weft, "sk-b", "victim")
        for alias, status in (("victim", 409), ("base", 409), ("best", 200)):
            answer = await weft.http_session.post("/v1/adapters", json={"id": "good", "alias": alias},
                                                  headers=make_auth_headers(key))
            assert answer.status == status
        assert await generate_text(weft, "sk-b", "best") == await generate_text(weft, "sk-b", "good") != before
        assert await generate_text(weft, "sk-b", "victim") == before
    play_scenario(scenario, tmp_path, http=True, store=FakeAdapterStore("good", "victim"), api_key="sk-single",
                  api_keys=write_keys_file(tmp_path, USER_AND_ADMIN_KEYS))


def test_without_roles_only_the_single_key_can_change_adapters(tmp_path):
    async def scenario(weft):
        for key, status in (("sk-a", 403), ("sk-single", 200)):
            answer = await weft.http_session.post("/v1/adapters", json={"id": "good"}, headers=make_auth_headers(key))
            assert answer.status == status
    play_scenario(scenario, tmp_path, http=True, store=FakeAdapterStore("good"), api_key="sk-single",
                  api_keys=write_keys_file(tmp_path, USER_KEYS))


def test_without_keys_everybody_can_load_and_unload_adapters(tmp_path):
    async def scenario(weft):
        assert (await weft.http_session.post("/v1/adapters", json={"id": "good", "alias": "best"})).status == 200
        assert (await weft.http_session.delete("/v1/adapters/best")).status == 200
    play_scenario(scenario, tmp_path, http=True, store=FakeAdapterStore("good"))
