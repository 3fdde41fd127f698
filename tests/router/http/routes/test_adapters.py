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
from support.servers.expected_streams import ReceivedStream, make_text_request
from support.servers.in_process_server import play_scenario as play_weft

from router.adapters.reference import AdapterReference
from router.adapters.registry import AdapterRegistry
from router.api_keys import ApiKeys
from router.http.server import PROTOCOL_OPTIONS, create_app
from router.http.transport.services import ServedModel
from router.text.chat_template import simulated_model_template
from router.validation.validator import RequestValidator


class ScriptedAdapterStore:
    """Double of the adapter store, with versions by name: `broken` is invalid, `secret` needs the token `mine`."""

    def __init__(self) -> None:
        self.versions = dict.fromkeys(("org/a", "org/b", "/looms/c"), "1")
        self.received_requests: list[dict[str, Any]] = []

    async def send_request(self, **request: Any) -> Mapping[str, Any]:
        self.received_requests.append(request)
        return {} if request["op"] == "pin" else self._fetch_response(request["name"], request["token"])

    def _fetch_response(self, name: str, token: str) -> Mapping[str, Any]:
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


class AdapterRoutesSetup:
    def __init__(self, weft: Any, store: ScriptedAdapterStore, client: TestClient[Any, Any], adapters: Any) -> None:
        self.engine, self.store, self._client, self.weft = weft.engine, store, client, weft
        self.registry = adapters

    async def send_request(self, method: str, path: str, *, key: str = "sk-loom", **body: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else None
        answer = await self._client.request(method, path, json=body or None, headers=headers)
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def load_adapter(self, name: str, **body_fields: Any) -> dict[str, Any]:
        status, response = await self.send_request("POST", "/v1/adapters", id=name, **body_fields)
        assert status == 200, response
        return response  # type: ignore[no-any-return]

    async def load_and_use_adapter(self, name: str) -> None:
        """Load the first adapter, and begin the first step of a request that uses it."""
        await self.load_adapter(name)
        [resource] = self.engine.adapter_grammar_controller.adapter_states
        self.engine.submit(make_text_request("a loom", 3, adapter=resource))
        await self.weft.gate.wait_for_step()

    async def list_adapters(self) -> list[dict[str, Any]]:
        status, response = await self.send_request("GET", "/v1/adapters")
        assert (status, response["object"]) == (200, "list")
        return response["data"]  # type: ignore[no-any-return]

    async def get_error(self, method: str, path: str, **body: Any) -> tuple[int, str | None, str]:
        """Return the status of an error response, and the code and message in its body."""
        status, response = await self.send_request(method, path, **body)
        return status, response["error"]["code"], response["error"]["message"]


Scenario = Callable[[AdapterRoutesSetup], Awaitable[None]]


def run_scenario(scenario: Scenario, folder: Path, *, has_adapters: bool = True, **settings: Any) -> None:
    async def main(weft: Any) -> None:
        config, engine, store = weft.config, weft.engine, ScriptedAdapterStore()
        adapters = AdapterRegistry(config, store, engine.adapter_grammar_controller.loader) if has_adapters else None
        if adapters is not None:
            await adapters.preload(engine.adapter_grammar_controller.loader.load_permanently)
        with closing(RequestValidator(config, engine.model_info, weft.tokenizer, simulated_model_template(),
                                      engine.adapter_grammar_controller.loader.get_or_register,
                                      adapter_registry=adapters)) as validator:
            app = create_app(engine, validator, config, ApiKeys.from_config(config),
                             ServedModel("weft/loom", other_names=("gpt-4o",)))
            server = TestServer(app)
            await server.start_server(**PROTOCOL_OPTIONS)
            async with TestClient(server) as client:
                await scenario(AdapterRoutesSetup(weft, store, client, adapters))
    play_weft(main, folder, **{"api_key": "sk-loom", "adapter_bytes": 1000, **settings})


def test_adapter_is_fetched_and_loaded_without_a_request(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        loaded = await setup.load_adapter("org/a")
        assert abs(loaded.pop("last_used") - time.time()) < 30
        assert loaded == {
            "id": "org/a", "object": "adapter", "alias": None, "source": "hub", "digest": "a-1", "base": "org/loom",
            "state": "loaded", "bytes_on_disk": 10, "bytes_on_shard": 40, "requests": 0, "loads": 1, "private": False,
            "stays": False}
        assert [adapter["id"] for adapter in await setup.list_adapters()] == ["org/a"]
    run_scenario(scenario, tmp_path)


def test_loading_again_fetches_the_new_version_and_unloads_the_old(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_adapter("org/a")
        assert (await setup.load_adapter("org/a"))["loads"] == 1
        setup.store.versions["org/a"] = "2"
        removed = setup.weft.watch_scheduler_calls("on_resource_unloaded")
        assert (await setup.load_adapter("org/a"))["digest"] == "a-2"
        await removed.get()
        states = setup.engine.adapter_grammar_controller.adapter_states
        assert [standing.state for standing in states.values()] == ["loaded"]
        assert setup.store.received_requests[-1]["fresh"]
    run_scenario(scenario, tmp_path)


@pytest.mark.parametrize(("name", "status", "code", "reason"), [
    ("nobody/knows", 404, "model_not_found", "there is none"),
    ("secret", 404, "model_not_found", "there is none"),
    ("broken", 424, "adapter_failed", "it has no end"),
    ("large", 424, "adapter_failed", "takes 5,000 bytes of memory"),
    ("", 400, None, "must be a name of 1 to 512 characters"),
])
def test_load_failure_is_reported_with_its_reason(
        tmp_path: Path, name: str, status: int, code: str | None, reason: str) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        error = await setup.get_error("POST", "/v1/adapters", id=name)
        assert error[:2] == (status, code)
        assert reason in error[2]
        assert await setup.list_adapters() == []
    run_scenario(scenario, tmp_path)


def test_failed_new_version_leaves_the_old_one_loaded(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_adapter("org/a")
        setup.store.versions["large"] = setup.store.versions.pop("org/a")
        setup.store._fetch_response = lambda name, token: ScriptedAdapterStore()._fetch_response("large", token)  # type: ignore[method-assign]
        assert (await setup.get_error("POST", "/v1/adapters", id="org/a"))[0] == 424
        assert [(adapter["digest"], adapter["state"]) for adapter in await setup.list_adapters()] == [("a-1", "loaded")]
    run_scenario(scenario, tmp_path)


def test_deleted_adapter_is_unloaded_and_unknown_afterwards(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_adapter("org/a", alias="looms")
        removed = setup.weft.watch_scheduler_calls("on_resource_unloaded")
        assert await setup.send_request("DELETE", "/v1/adapters/org/a") == (
            200, {"id": "org/a", "object": "adapter", "deleted": True})
        await removed.get()
        assert await setup.list_adapters() == []
        for name in ("org/a", "looms", "nobody/knows", ""):
            assert (await setup.get_error("DELETE", f"/v1/adapters/{name}"))[0] == 404
    run_scenario(scenario, tmp_path)


def test_running_request_keeps_a_deleted_adapter(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_adapter("org/a")
        resource, = setup.engine.adapter_grammar_controller.adapter_states
        stream = setup.engine.submit(make_text_request("a loom", 3, adapter=resource))
        await setup.weft.gate.wait_for_step()
        assert [adapter["requests"] for adapter in await setup.list_adapters()] == [1]
        assert (await setup.send_request("DELETE", "/v1/adapters/org/a"))[0] == 200
        removed = setup.weft.watch_scheduler_calls("on_resource_unloaded")
        setup.weft.gate.release_all()
        received = await ReceivedStream.from_stream(stream)
        received.check_output(setup.weft.model)
        await removed.get()
    run_scenario(scenario, tmp_path, gated=True)


def test_version_stays_loaded_while_another_name_uses_it(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        setup.store._fetch_response = lambda name, token: ScriptedAdapterStore()._fetch_response("org/b", token)  # type: ignore[method-assign]
        await setup.load_adapter("org/a")
        await setup.load_adapter("org/b")
        assert (await setup.send_request("DELETE", "/v1/adapters/org/a"))[0] == 200
        assert [(adapter["id"], adapter["state"]) for adapter in await setup.list_adapters()] == [("org/b", "loaded")]
        assert (await setup.load_adapter("org/b"))["loads"] == 1
    run_scenario(scenario, tmp_path)


def test_preloaded_adapters_are_listed_and_cannot_be_changed(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        listed = [(adapter["id"], adapter["alias"], adapter["stays"], adapter["state"])
                  for adapter in await setup.list_adapters()]
        assert listed == [("org/a", "mine", True, "loaded"), ("org/b", None, True, "loaded")]
        for name in ("org/a", "mine", "org/b"):
            assert (await setup.get_error("DELETE", f"/v1/adapters/{name}"))[0] == 409
            assert (await setup.get_error("POST", "/v1/adapters", id=name))[0] == 409
        assert (await setup.get_error("POST", "/v1/adapters", id="/looms/c", alias="mine"))[0] == 409
    run_scenario(scenario, tmp_path, preloaded_adapter_ids=("mine=org/a",), adapter_id="org/b")


def test_aliases_are_looked_through_once_for_all_adapters(tmp_path: Path) -> None:
    """Regression: they were looked through for each adapter, a third of a second for a thousand."""
    class CountingAliases(dict[str, AdapterReference]):
        num_passes = 0

        def items(self) -> Any:
            self.num_passes += 1
            return super().items()

    async def scenario(setup: AdapterRoutesSetup) -> None:
        for name, alias in (("org/a", "looms"), ("org/b", "org/b")):
            await setup.load_adapter(name, alias=alias)
        setup.registry.add_alias("later", AdapterReference("org/a", "hub"))
        aliases = setup.registry.aliases = CountingAliases(setup.registry.aliases)
        listed = {adapter["id"]: adapter["alias"] for adapter in await setup.list_adapters()}
        assert (listed, aliases.num_passes) == ({"org/a": "looms", "org/b": None}, 1)
    run_scenario(scenario, tmp_path)


def test_alias_works_as_a_name_of_its_adapter(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        assert (await setup.load_adapter("org/a", alias="looms"))["alias"] == "looms"
        assert (await setup.load_adapter("looms"))["id"] == "org/a"
        assert (await setup.get_error("POST", "/v1/adapters", id="org/a", alias="weft/loom"))[0] == 409
        assert (await setup.get_error("POST", "/v1/adapters", id="org/a", alias=""))[0] == 400
        assert (await setup.send_request("DELETE", "/v1/adapters/looms"))[0] == 200
        assert await setup.list_adapters() == []
    run_scenario(scenario, tmp_path)


@pytest.mark.parametrize(
    "alias", ["tgi", "dummy", "base", "__base_model__", "http://loom", "HTTPS://loom", "weft/loom", "gpt-4o"])
def test_alias_must_not_be_a_name_of_the_model(tmp_path: Path, alias: str) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        status, _, message = await setup.get_error("POST", "/v1/adapters", id="org/a", alias=alias)
        assert status == 409
        assert message == (f"`alias` {alias} is a name of the model weft/loom, so the adapter org/a (hub) cannot be "
                           "called so; choose another alias")
        assert setup.store.received_requests == []
    run_scenario(scenario, tmp_path)


def test_local_adapter_is_unloaded_by_any_spelling_of_its_path(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        for spelling in ("org/a/", "./org/a", "org/a"):
            assert (await setup.load_adapter("./org//a"))["id"] == "org/a"
            assert (await setup.send_request("DELETE", f"/v1/adapters/{spelling}"))[0] == 200
            assert await setup.list_adapters() == []
        await setup.load_adapter("org/a")
        status, _, message = await setup.get_error("POST", "/v1/adapters", id="org/b", alias="./org/a")
        assert (status, "is the id of the adapter org/a (local)" in message) == (409, True)
    run_scenario(scenario, tmp_path, adapter_source="local")


def test_alias_must_not_be_a_name_of_another_adapter(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_adapter("org/a", alias="looms")
        for alias, field in (("org/a", "the id"), ("looms", "the name")):
            status, _, message = await setup.get_error("POST", "/v1/adapters", id="org/b", alias=alias)
            assert status == 409
            assert message == (f"`alias` {alias} is {field} of the adapter org/a (hub), so the adapter org/b (hub) "
                               "cannot be called so; choose another alias")
        assert [adapter["id"] for adapter in await setup.list_adapters()] == ["org/a"]
        assert (await setup.load_adapter("org/a", alias="looms"))["alias"] == "looms"  # its own alias again
        assert (await setup.load_adapter("org/a", alias="org/a"))["id"] == "org/a"
    run_scenario(scenario, tmp_path)


def test_alias_taken_during_the_fetch_stays_with_its_owner(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        fetched = setup.store._fetch_response

        def fetch_and_take_alias(name: str, token: str) -> Mapping[str, Any]:
            if name == "org/a":  # another adapter takes the alias during the fetch
                setup.registry.add_alias("looms", AdapterReference("org/b", "hub"))
            return fetched(name, token)
        setup.store._fetch_response = fetch_and_take_alias  # type: ignore[method-assign]
        assert (await setup.get_error("POST", "/v1/adapters", id="org/a", alias="looms"))[0] == 409
        assert setup.registry.aliases == {"looms": AdapterReference("org/b", "hub")}
    run_scenario(scenario, tmp_path)


def test_alias_must_not_be_a_name_that_is_being_fetched(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        fetch_started, may_answer = asyncio.Event(), asyncio.Event()
        send_request = setup.store.send_request

        async def send_slowly(**question: Any) -> Mapping[str, Any]:
            if question.get("name") == "org/b":
                fetch_started.set()
                await may_answer.wait()
            return await send_request(**question)
        setup.store.send_request = send_slowly  # type: ignore[method-assign]
        await setup.load_adapter("org/a")
        fetching = asyncio.create_task(setup.load_adapter("org/b"))
        await fetch_started.wait()
        status, _, message = await setup.get_error("POST", "/v1/adapters", id="org/a", alias="org/b")
        assert (status, "`alias` org/b is the id of the adapter org/b (hub)" in message) == (409, True)
        may_answer.set()
        await fetching
    run_scenario(scenario, tmp_path)


def test_vllm_route_may_replace_an_alias_in_place_but_not_an_id(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_adapter("org/a")
        for name, status in (("looms", 200), ("org/a", 409), ("base", 409)):
            assert (await setup.send_request("POST", "/v1/load_lora_adapter", lora_name=name, lora_path="org/b",
                                             load_inplace=True))[0] == status
    run_scenario(scenario, tmp_path)


ADMIN_REQUESTS = [
    ("POST", "/v1/adapters", {"id": "org/b", "alias": "org/a"}),
    ("POST", "/v1/adapters", {"id": "org/a"}),
    ("DELETE", "/v1/adapters/org/a", {}),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "org/a", "lora_path": "org/b", "load_inplace": True}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": "org/a"}),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMIN_REQUESTS)
def test_tenant_cannot_change_adapters(
        tmp_path: Path, method: str, path: str, body: dict[str, Any]) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_adapter("org/a")
        store_requests = [*setup.store.received_requests]
        error = await setup.get_error(method, path, key="sk-user", **body)
        assert error == (403, None, f"{method} {path} needs an admin key: one with the role admin in the file of "
                         "--api-keys, or the one of --api-key")
        assert (setup.store.received_requests, setup.registry.aliases) == (store_requests, {})
        assert [adapter["id"]
                for adapter in (await setup.send_request("GET", "/v1/adapters", key="sk-user"))[1]["data"]] == ["org/a"]
    run_scenario(scenario, tmp_path, api_keys=write_keys_file(tmp_path, has_admin=False))


def test_admin_key_or_a_server_without_keys_allows_changes(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        key = "sk-admin" if setup.weft.config.api_keys else ""
        for method, path, body in (("POST", "/v1/adapters", {"id": "org/a", "alias": "looms"}),
                                   ("DELETE", "/v1/adapters/org/a", {})):
            assert (await setup.send_request(method, path, key=key, **body))[0] == 200
    run_scenario(scenario, tmp_path, api_key="", api_keys=write_keys_file(tmp_path, has_admin=True))
    run_scenario(scenario, tmp_path, api_key="")


def write_keys_file(folder: Path, *, has_admin: bool) -> str:
    """Write a keys file with a user's key and, with `has_admin`, an admin's key; return its path."""
    keys = {"sk-user": {"tenant": "a"}}
    if has_admin:
        keys["sk-admin"] = {"tenant": "b", "role": "admin"}
    file = folder / "keys"
    file.write_text(json.dumps(keys))
    return str(file)


def test_source_tokens_are_never_returned(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        adapter = await setup.load_adapter("secret", api_token="mine")
        assert adapter["private"]
        assert "mine" not in json.dumps([adapter, await setup.list_adapters()])
    run_scenario(scenario, tmp_path)


def test_private_adapters_are_listed_for_admin_keys_alone(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        for name in ("secret", "org/a"):
            body = {"id": name, "api_token": "mine"}
            assert (await setup.send_request("POST", "/v1/adapters", key="sk-admin", **body))[0] == 200
        for key, names in (("sk-admin", ["secret", "org/a"]), ("sk-user", ["org/a"])):
            _, listed = await setup.send_request("GET", "/v1/adapters", key=key)
            assert [adapter["id"] for adapter in listed["data"]] == names
    run_scenario(scenario, tmp_path, api_key="", api_keys=write_keys_file(tmp_path, has_admin=True))


def test_vllm_routes_answer_in_vllm_format(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        async def load(name: str, path: str, **more: Any) -> tuple[int, Any]:
            return await setup.send_request("POST", "/v1/load_lora_adapter", lora_name=name, lora_path=path, **more)

        assert await load("looms", "/looms/c") == (200, "Success: LoRA adapter 'looms' added successfully.")
        assert [(adapter["id"], adapter["alias"], adapter["source"]) for adapter in await setup.list_adapters()] == [
            ("/looms/c", "looms", "local")]
        status, response = await load("looms", "/looms/c")
        assert (status, response["error"]["type"]) == (400, "invalid_request_error")
        assert response["error"]["message"].startswith("The lora adapter 'looms' has already been loaded.")
        assert (await load("looms", "org/a", load_inplace=True))[0] == 200
        assert (await load("other", "nobody/knows"))[0] == 404
        assert await setup.send_request("POST", "/v1/unload_lora_adapter", lora_name="looms") == (
            200, "Success: LoRA adapter 'looms' removed successfully.")
        assert await setup.get_error("POST", "/v1/unload_lora_adapter", lora_name="looms") == (
            404, None, "The lora adapter 'looms' cannot be found.")
    run_scenario(scenario, tmp_path)


@pytest.mark.parametrize("body", [
    {"id": "x" * 513}, {"id": 5}, {}, {"id": "org/a", "alias": "x" * 513}, {"id": "org/a", "alias": "a\nb"},
    {"id": "org/a", "source": 5}])
def test_invalid_adapter_fields_are_rejected(tmp_path: Path, body: dict[str, Any]) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        assert (await setup.get_error("POST", "/v1/adapters", **{"id": None, **body}))[0] == 400
        assert setup.store.received_requests == []
    run_scenario(scenario, tmp_path)


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/v1/adapters", {"id": "x" * 600}, "id"), ("/v1/adapters", {"id": "org/a", "alias": "x" * 600}, "alias"),
    ("/v1/load_lora_adapter", {"lora_name": "loom", "lora_path": "x" * 600}, "lora_path"),
    ("/v1/load_lora_adapter", {"lora_name": "x" * 600, "lora_path": "org/a"}, "lora_name"),
    ("/v1/completions", {"prompt": "a", "model": "x" * 600}, "model"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": "x" * 600}, "model")])
def test_invalid_adapter_name_error_names_the_sent_field(
        tmp_path: Path, path: str, body: dict[str, Any], param: str) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        status, response = await setup.send_request("POST", path, **body)
        assert (status, response["error"]["param"]) == (400, param)
        assert response["error"]["message"].startswith(f"`{param}` must be a name of 1 to ")
    run_scenario(scenario, tmp_path)


def test_adapter_routes_report_when_adapters_are_disabled(tmp_path: Path) -> None:
    async def scenario(setup: AdapterRoutesSetup) -> None:
        for method, path, body in (("GET", "/v1/adapters", {}), ("POST", "/v1/adapters", {"id": "org/a"}),
                                   ("DELETE", "/v1/adapters/org/a", {})):
            assert await setup.get_error(method, path, **body) == (
                400, None, "this model is served without adapters (--adapters)")
    run_scenario(scenario, tmp_path, has_adapters=False)


def test_load_pending_at_shutdown_is_rejected(tmp_path: Path) -> None:
    """Report shutdown to a load that waits for the only adapter slot, which a running request uses."""
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_and_use_adapter("org/a")
        load_requests = setup.weft.watch_scheduler_calls("request_resource_load")
        loading = asyncio.create_task(setup.send_request("POST", "/v1/adapters", id="org/b"))
        await load_requests.get()
        setup.engine._fail_all_requests("the server is shutting down")
        assert (await loading)[0] == 503
    run_scenario(scenario, tmp_path, gated=True, max_active_adapters=1)


def test_load_learns_that_its_adapter_was_unloaded_while_it_waited(tmp_path: Path) -> None:
    """The only adapter slot is used by a running request."""
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_and_use_adapter("org/a")
        load_requests = setup.weft.watch_scheduler_calls("request_resource_load")
        loading = asyncio.create_task(setup.get_error("POST", "/v1/adapters", id="org/b"))
        await load_requests.get()
        assert (await setup.send_request("DELETE", "/v1/adapters/org/b"))[0] == 200
        assert await loading == (424, "adapter_failed",
                                 "the adapter org/b: it was unloaded while this request waited for it")
        assert [adapter["id"] for adapter in await setup.list_adapters()] == ["org/a"]
    run_scenario(scenario, tmp_path, gated=True, max_active_adapters=1)


def test_adapter_deleted_while_a_new_version_waits_is_unloaded_in_both_versions(tmp_path: Path) -> None:
    """The new version has no room while the running request uses the old one."""
    async def scenario(setup: AdapterRoutesSetup) -> None:
        await setup.load_and_use_adapter("org/a")
        setup.store.versions["org/a"] = "2"
        load_requests = setup.weft.watch_scheduler_calls("request_resource_load")
        loading = asyncio.create_task(setup.get_error("POST", "/v1/adapters", id="org/a"))
        await load_requests.get()
        assert (await setup.send_request("DELETE", "/v1/adapters/org/a"))[0] == 200
        assert (await loading)[0] == 424
        assert await setup.list_adapters() == []
        removed = setup.weft.watch_scheduler_calls("on_resource_unloaded")
        setup.weft.gate.release_all()
        await removed.get()
        assert setup.engine.adapter_grammar_controller.adapter_states == {}
    run_scenario(scenario, tmp_path, gated=True, max_active_adapters=1)
