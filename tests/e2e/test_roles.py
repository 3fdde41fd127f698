"""Tests of API keys and their roles over HTTP: the changes a tenant may make to adapters that others use."""

import json

import pytest
from support.fake_adapter_store import Store
from support.in_process_server import body, play

USERS = {"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}}
KEYS = USERS | {"sk-op": {"tenant": "op", "role": "admin"}}
CHANGES = {
    "alias": ("POST", "/v1/adapters", {"id": "good", "alias": "victim"}),
    "load": ("POST", "/v1/adapters", {"id": "victim"}),
    "unload": ("DELETE", "/v1/adapters/victim", None),
    "load as vLLM": ("POST", "/v1/load_lora_adapter",
                     {"lora_name": "victim", "lora_path": "good", "load_inplace": True}),
    "unload as vLLM": ("POST", "/v1/unload_lora_adapter", {"lora_name": "victim"}),
}


def by(key):
    return {"Authorization": f"Bearer {key}"}


async def said(weft, key, adapter):
    answer = await weft.http.post("/generate", json=body("a loom", adapter_id=adapter), headers=by(key))
    assert answer.status == 200, await answer.text()
    return (await answer.json())["generated_text"]


async def known(weft, key):
    answer = await weft.http.get("/v1/adapters", headers=by(key))
    return {(adapter["id"], adapter["alias"]) for adapter in (await answer.json())["data"]}


def write(folder, keys):
    (folder / "keys").write_text(json.dumps(keys))
    return str(folder / "keys")


@pytest.mark.parametrize("change", CHANGES)
def test_what_one_tenant_asks_for_changes_nothing_for_another(tmp_path, change):
    method, path, asked = CHANGES[change]

    async def story(weft):
        before, good = await said(weft, "sk-b", "victim"), await said(weft, "sk-b", "good")
        assert before != good
        answer = await weft.http.request(method, path, json=asked, headers=by("sk-a"))
        assert answer.status == 403
        assert "needs an admin key" in (await answer.json())["error"]["message"]
        assert await known(weft, "sk-b") == {("victim", None), ("good", None)}
        assert await said(weft, "sk-b", "victim") == before
    play(story, tmp_path, http=True, store=Store("good", "victim"), api_keys=write(tmp_path, USERS))


@pytest.mark.parametrize("key", ["sk-op", "sk-single"])
def test_an_admin_gives_names_but_none_that_is_taken(tmp_path, key):
    async def story(weft):
        before = await said(weft, "sk-b", "victim")
        for alias, status in (("victim", 409), ("base", 409), ("best", 200)):
            answer = await weft.http.post("/v1/adapters", json={"id": "good", "alias": alias}, headers=by(key))
            assert answer.status == status
        assert await said(weft, "sk-b", "best") == await said(weft, "sk-b", "good") != before
        assert await said(weft, "sk-b", "victim") == before
    play(story, tmp_path, http=True, store=Store("good", "victim"), api_key="sk-single",
         api_keys=write(tmp_path, KEYS))


def test_in_a_file_without_roles_only_the_single_key_changes_anything(tmp_path):
    async def story(weft):
        for key, status in (("sk-a", 403), ("sk-single", 200)):
            answer = await weft.http.post("/v1/adapters", json={"id": "good"}, headers=by(key))
            assert answer.status == status
    play(story, tmp_path, http=True, store=Store("good"), api_key="sk-single",
         api_keys=write(tmp_path, USERS))


def test_where_nobody_needs_a_key_everybody_loads_and_unloads(tmp_path):
    async def story(weft):
        assert (await weft.http.post("/v1/adapters", json={"id": "good", "alias": "best"})).status == 200
        assert (await weft.http.delete("/v1/adapters/best")).status == 200
    play(story, tmp_path, http=True, store=Store("good"))
