"""Adapter routes over an engine with simulated shards and a scripted adapter store."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from support.expected_streams import Heard, ask
from support.in_process_server import play as play_weft

from router.adapters.reference import Named
from router.adapters.registry import Adapters
from router.api_keys import Keys
from router.http.app import create_app
from router.http.transport.generate import About
from router.http.transport.server import PROTOCOL
from router.text.chat_template import plain_template
from router.validation.validator import Validator


class Store:
    """Double of the adapter store, with versions by name: `broken` is invalid, `secret` needs the token `mine`."""

    def __init__(self) -> None:
        self.versions = dict.fromkeys(("org/a", "org/b", "/looms/c"), "1")
        self.questions: list[dict[str, Any]] = []

    async def ask(self, **question: Any) -> Mapping[str, Any]:
        self.questions.append(question)
        return {} if question["op"] == "pin" else self._fetched(question["name"], question["token"])

    def _fetched(self, name: str, token: str) -> Mapping[str, Any]:
        if name == "broken":
            return {"error": "it has no end", "kind": "invalid"}
        if name == "secret" and token != "mine":
            return {"error": "there is none", "kind": "forbidden"}
        if name not in {*self.versions, "secret", "large"}:
            return {"error": "there is none", "kind": "missing"}
        digest = f"{name.rpartition('/')[2]}-{self.versions.get(name, 1)}"
        return {"digest": digest, "folder": f"/versions/{digest}", "takes": 5000 if name == "large" else 40,
                "bytes": 10, "base": "org/loom", "private": name == "secret"}

    async def close(self) -> None:
        pass


class House:
    def __init__(self, weft: Any, store: Store, client: TestClient[Any, Any], adapters: Any) -> None:
        self.engine, self.store, self._client, self.weft = weft.engine, store, client, weft
        self.adapters = adapters

    async def ask(self, method: str, path: str, *, key: str = "sk-loom", **body: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else None
        answer = await self._client.request(method, path, json=body or None, headers=headers)
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def load(self, name: str, **more: Any) -> dict[str, Any]:
        status, told = await self.ask("POST", "/v1/adapters", id=name, **more)
        assert status == 200, told
        return told  # type: ignore[no-any-return]

    async def listed(self) -> list[dict[str, Any]]:
        status, told = await self.ask("GET", "/v1/adapters")
        assert (status, told["object"]) == (200, "list")
        return told["data"]  # type: ignore[no-any-return]

    async def failed(self, method: str, path: str, **body: Any) -> tuple[int, str | None, str]:
        """Status, code and message."""
        status, told = await self.ask(method, path, **body)
        return status, told["error"]["code"], told["error"]["message"]


Story = Callable[[House], Awaitable[None]]


def play(story: Story, folder: Path, *, served: bool = True, **settings: Any) -> None:
    async def told(weft: Any) -> None:
        config, engine, store = weft.config, weft.engine, Store()
        adapters = Adapters(config, store, engine.supply.resources) if served else None
        if adapters is not None:
            await adapters.preload(engine.supply.resources.keep)
        with closing(Validator(config, engine.facts, weft.tokenizer, plain_template(), engine.supply.resources.of,
                               adapters=adapters)) as validator:
            app = create_app(engine, validator, config, Keys.of(config), About("weft/loom"))
            server = TestServer(app)
            await server.start_server(**PROTOCOL)
            async with TestClient(server) as client:
                await story(House(weft, store, client, adapters))
    play_weft(told, folder, **{"api_key": "sk-loom", "adapter_bytes": 1000, **settings})


def test_an_adapter_is_fetched_and_loaded_before_anybody_asks_for_it(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        told = await house.load("org/a")
        assert abs(told.pop("last_used") - time.time()) < 30
        assert told == {
            "id": "org/a", "object": "adapter", "alias": None, "source": "hub", "digest": "a-1", "base": "org/loom",
            "state": "here", "bytes_on_disk": 10, "bytes_on_shard": 40, "requests": 0, "loads": 1, "private": False,
            "stays": False}
        assert [adapter["id"] for adapter in await house.listed()] == ["org/a"]
    play(story, tmp_path)


def test_to_load_it_again_fetches_anew_and_the_old_version_leaves(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.load("org/a")
        assert (await house.load("org/a"))["loads"] == 1
        house.store.versions["org/a"] = "2"
        removed = house.weft.watch("removed")
        assert (await house.load("org/a"))["digest"] == "a-2"
        await removed.get()
        assert [standing.state for standing in house.engine.supply.adapters.values()] == ["here"]
        assert house.store.questions[-1]["fresh"]
    play(story, tmp_path)


@pytest.mark.parametrize(("name", "status", "code", "reason"), [
    ("nobody/knows", 404, "model_not_found", "there is none"),
    ("secret", 404, "model_not_found", "there is none"),
    ("broken", 424, "adapter_failed", "it has no end"),
    ("large", 424, "adapter_failed", "takes 5,000 bytes of memory"),
    ("", 400, None, "must be a name of 1 to 512 characters"),
])
def test_why_an_adapter_cannot_be_had_is_told_at_once(
        tmp_path: Path, name: str, status: int, code: str | None, reason: str) -> None:
    async def story(house: House) -> None:
        told = await house.failed("POST", "/v1/adapters", id=name)
        assert told[:2] == (status, code)
        assert reason in told[2]
        assert await house.listed() == []
    play(story, tmp_path)


def test_a_new_version_that_cannot_be_loaded_leaves_the_old_one(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.load("org/a")
        house.store.versions["large"] = house.store.versions.pop("org/a")
        house.store._fetched = lambda name, token: Store()._fetched("large", token)  # type: ignore[method-assign]
        assert (await house.failed("POST", "/v1/adapters", id="org/a"))[0] == 424
        assert [(told["digest"], told["state"]) for told in await house.listed()] == [("a-1", "here")]
    play(story, tmp_path)


def test_what_is_forgotten_leaves_and_is_unknown_then(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.load("org/a", alias="looms")
        removed = house.weft.watch("removed")
        assert await house.ask("DELETE", "/v1/adapters/org/a") == (
            200, {"id": "org/a", "object": "adapter", "deleted": True})
        await removed.get()
        assert await house.listed() == []
        for name in ("org/a", "looms", "nobody/knows", ""):
            assert (await house.failed("DELETE", f"/v1/adapters/{name}"))[0] == 404
    play(story, tmp_path)


def test_who_runs_with_it_keeps_it(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.load("org/a")
        resource, = house.engine.supply.adapters
        stream = house.engine.submit(ask("a loom", 3, adapter=resource))
        await house.weft.gate.arrival()
        assert [told["requests"] for told in await house.listed()] == [1]
        assert (await house.ask("DELETE", "/v1/adapters/org/a"))[0] == 200
        removed = house.weft.watch("removed")
        house.weft.gate.open()
        heard = await Heard.all_of(stream)
        heard.check(house.weft.model)
        await removed.get()
    play(story, tmp_path, gated=True)


def test_a_version_that_another_name_stands_for_stays(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.store._fetched = lambda name, token: Store()._fetched("org/b", token)  # type: ignore[method-assign]
        await house.load("org/a")
        await house.load("org/b")
        assert (await house.ask("DELETE", "/v1/adapters/org/a"))[0] == 200
        assert [(told["id"], told["state"]) for told in await house.listed()] == [("org/b", "here")]
        assert (await house.load("org/b"))["loads"] == 1
    play(story, tmp_path)


def test_what_was_loaded_at_start_is_listed_and_stays(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        listed = [(told["id"], told["alias"], told["stays"], told["state"]) for told in await house.listed()]
        assert listed == [("org/a", "mine", True, "here"), ("org/b", None, True, "here")]
        for name in ("org/a", "mine", "org/b"):
            assert (await house.failed("DELETE", f"/v1/adapters/{name}"))[0] == 409
            assert (await house.failed("POST", "/v1/adapters", id=name))[0] == 409
        assert (await house.failed("POST", "/v1/adapters", id="/looms/c", alias="mine"))[0] == 409
    play(story, tmp_path, preloaded_adapter_ids=("mine=org/a",), adapter_id="org/b")


def test_an_alias_is_a_name_too_but_not_that_of_the_model(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        assert (await house.load("org/a", alias="looms"))["alias"] == "looms"
        assert (await house.load("looms"))["id"] == "org/a"
        assert (await house.failed("POST", "/v1/adapters", id="org/a", alias="weft/loom"))[0] == 409
        assert (await house.failed("POST", "/v1/adapters", id="org/a", alias=""))[0] == 400
        assert (await house.ask("DELETE", "/v1/adapters/looms"))[0] == 200
        assert await house.listed() == []
    play(story, tmp_path)


@pytest.mark.parametrize(
    "alias", ["tgi", "dummy", "base", "__base_model__", "http://loom", "HTTPS://loom", "weft/loom"])
def test_an_alias_is_no_name_of_the_model(tmp_path: Path, alias: str) -> None:
    async def story(house: House) -> None:
        status, _, told = await house.failed("POST", "/v1/adapters", id="org/a", alias=alias)
        assert status == 409
        assert told == (f"`alias` {alias} is a name of the model weft/loom, so the adapter org/a (hub) cannot be "
                        "called so; choose another alias")
        assert house.store.questions == []
    play(story, tmp_path)


def test_an_alias_takes_no_name_from_another_adapter(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.load("org/a", alias="looms")
        for alias, what in (("org/a", "the id"), ("looms", "the name")):
            status, _, told = await house.failed("POST", "/v1/adapters", id="org/b", alias=alias)
            assert status == 409
            assert told == (f"`alias` {alias} is {what} of the adapter org/a (hub), so the adapter org/b (hub) cannot "
                            "be called so; choose another alias")
        assert [told["id"] for told in await house.listed()] == ["org/a"]
        assert (await house.load("org/a", alias="looms"))["alias"] == "looms"  # its own alias again
        assert (await house.load("org/a", alias="org/a"))["id"] == "org/a"
    play(story, tmp_path)


def test_an_alias_that_was_taken_while_its_adapter_was_fetched_stays_with_who_has_it(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        fetched = house.store._fetched

        def fetch(name: str, token: str) -> Mapping[str, Any]:
            if name == "org/a":  # another adapter takes the alias during the fetch
                house.adapters.call("looms", Named("org/b", "hub"))
            return fetched(name, token)
        house.store._fetched = fetch  # type: ignore[method-assign]
        assert (await house.failed("POST", "/v1/adapters", id="org/a", alias="looms"))[0] == 409
        assert house.adapters.names == {"looms": Named("org/b", "hub")}
    play(story, tmp_path)


def test_an_alias_is_no_name_that_is_being_fetched(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        asked, may_answer = asyncio.Event(), asyncio.Event()
        ask = house.store.ask

        async def slowly(**question: Any) -> Mapping[str, Any]:
            if question.get("name") == "org/b":
                asked.set()
                await may_answer.wait()
            return await ask(**question)
        house.store.ask = slowly  # type: ignore[method-assign]
        await house.load("org/a")
        fetching = asyncio.create_task(house.load("org/b"))
        await asked.wait()
        status, _, told = await house.failed("POST", "/v1/adapters", id="org/a", alias="org/b")
        assert (status, "`alias` org/b is the id of the adapter org/b (hub)" in told) == (409, True)
        may_answer.set()
        await fetching
    play(story, tmp_path)


def test_a_client_of_vllm_takes_an_alias_in_place_but_no_id(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.load("org/a")
        for name, status in (("looms", 200), ("org/a", 409), ("base", 409)):
            assert (await house.ask("POST", "/v1/load_lora_adapter", lora_name=name, lora_path="org/b",
                                    load_inplace=True))[0] == status
    play(story, tmp_path)


CHANGES = [
    ("POST", "/v1/adapters", {"id": "org/b", "alias": "org/a"}),
    ("POST", "/v1/adapters", {"id": "org/a"}),
    ("DELETE", "/v1/adapters/org/a", {}),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "org/a", "lora_path": "org/b", "load_inplace": True}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": "org/a"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_a_tenant_changes_nothing_that_others_use(
        tmp_path: Path, method: str, path: str, body: dict[str, Any]) -> None:
    async def story(house: House) -> None:
        await house.load("org/a")
        questions = [*house.store.questions]
        told = await house.failed(method, path, key="sk-user", **body)
        assert told == (403, None, f"{method} {path} needs an admin key: one with the role admin in the file of "
                                   "--api-keys, or the one of --api-key")
        assert (house.store.questions, house.adapters.names) == (questions, {})
        assert [told["id"] for told in (await house.ask("GET", "/v1/adapters", key="sk-user"))[1]["data"]] == ["org/a"]
    play(story, tmp_path, api_keys=keys_file(tmp_path, admins=False))


def test_a_key_of_the_role_admin_changes_them_and_where_nobody_needs_one_everybody_does(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        key = "sk-admin" if house.weft.config.api_keys else ""
        for method, path, body in (("POST", "/v1/adapters", {"id": "org/a", "alias": "looms"}),
                                   ("DELETE", "/v1/adapters/org/a", {})):
            assert (await house.ask(method, path, key=key, **body))[0] == 200
    play(story, tmp_path, api_key="", api_keys=keys_file(tmp_path, admins=True))
    play(story, tmp_path, api_key="")


def keys_file(folder: Path, *, admins: bool) -> str:
    """Write a keys file with a user's key and, with `admins`, an admin's key; return its path."""
    keys = {"sk-user": {"tenant": "a"}}
    if admins:
        keys["sk-admin"] = {"tenant": "b", "role": "admin"}
    file = folder / "keys"
    file.write_text(json.dumps(keys))
    return str(file)


def test_no_token_is_told(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        told = await house.load("secret", api_token="mine")
        assert told["private"]
        assert "mine" not in json.dumps([told, await house.listed()])
    play(story, tmp_path)


def test_clients_of_vllm_are_answered_in_its_words(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        async def load(name: str, path: str, **more: Any) -> tuple[int, Any]:
            return await house.ask("POST", "/v1/load_lora_adapter", lora_name=name, lora_path=path, **more)

        assert await load("looms", "/looms/c") == (200, "Success: LoRA adapter 'looms' added successfully.")
        assert [(told["id"], told["alias"], told["source"]) for told in await house.listed()] == [
            ("/looms/c", "looms", "local")]
        status, told = await load("looms", "/looms/c")
        assert (status, told["error"]["type"]) == (400, "invalid_request_error")
        assert told["error"]["message"].startswith("The lora adapter 'looms' has already been loaded.")
        assert (await load("looms", "org/a", load_inplace=True))[0] == 200
        assert (await load("other", "nobody/knows"))[0] == 404
        assert await house.ask("POST", "/v1/unload_lora_adapter", lora_name="looms") == (
            200, "Success: LoRA adapter 'looms' removed successfully.")
        assert await house.failed("POST", "/v1/unload_lora_adapter", lora_name="looms") == (
            404, None, "The lora adapter 'looms' cannot be found.")
    play(story, tmp_path)


@pytest.mark.parametrize("body", [
    {"id": "x" * 513}, {"id": 5}, {}, {"id": "org/a", "alias": "x" * 513}, {"id": "org/a", "alias": "a\nb"},
    {"id": "org/a", "source": 5}])
def test_what_is_no_name_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async def story(house: House) -> None:
        assert (await house.failed("POST", "/v1/adapters", **{"id": None, **body}))[0] == 400
        assert house.store.questions == []
    play(story, tmp_path)


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/v1/adapters", {"id": "x" * 600}, "id"), ("/v1/adapters", {"id": "org/a", "alias": "x" * 600}, "alias"),
    ("/v1/load_lora_adapter", {"lora_name": "loom", "lora_path": "x" * 600}, "lora_path"),
    ("/v1/load_lora_adapter", {"lora_name": "x" * 600, "lora_path": "org/a"}, "lora_name"),
    ("/v1/completions", {"prompt": "a", "model": "x" * 600}, "model"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": "x" * 600}, "model")])
def test_what_is_no_name_is_refused_by_the_field_that_was_sent(
        tmp_path: Path, path: str, body: dict[str, Any], param: str) -> None:
    async def story(house: House) -> None:
        status, told = await house.ask("POST", path, **body)
        assert (status, told["error"]["param"]) == (400, param)
        assert told["error"]["message"].startswith(f"`{param}` must be a name of 1 to ")
    play(story, tmp_path)


def test_without_adapters_the_routes_say_so(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        for method, path, body in (("GET", "/v1/adapters", {}), ("POST", "/v1/adapters", {"id": "org/a"}),
                                   ("DELETE", "/v1/adapters/org/a", {})):
            assert await house.failed(method, path, **body) == (
                400, None, "this model is served without adapters (--adapters)")
    play(story, tmp_path, served=False)


def test_whoever_loads_while_the_server_ends_is_told(tmp_path: Path) -> None:
    """Report shutdown to a load that waits for the only adapter slot, which a running request uses."""
    async def story(house: House) -> None:
        await house.load("org/a")
        house.engine.submit(ask("a loom", 3, adapter=next(iter(house.engine.supply.adapters))))
        await house.weft.gate.arrival()
        wanted = house.weft.watch("want")
        loading = asyncio.create_task(house.ask("POST", "/v1/adapters", id="org/b"))
        await wanted.get()
        house.engine._fail_everyone("the server is shutting down")
        assert (await loading)[0] == 503
    play(story, tmp_path, gated=True, max_active_adapters=1)
