"""Command-line client of the adapter routes, against a scripted server."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from launcher.client.adapters import AdaptersCommand, format_age, format_answer, send_command
from launcher.client.chat_client import ChatRequestFailed

NOW = 1_000_000.0
ADAPTER_JSON = {
    "id": "org/a", "object": "adapter", "alias": None, "source": "hub", "digest": "d", "base": "", "state": "loaded",
    "bytes_on_disk": 2_500_000, "bytes_on_shard": 40, "last_used": int(NOW) - 5, "requests": 3, "loads": 1,
    "private": False, "stays": False}


def run_client_command(status: int, response_json: Any,
                       **command_fields: Any) -> tuple[dict[str, Any], tuple[str, str, str, Any]]:
    """Return the client's result, and method, path, key and body of the request that the server received."""
    received_requests: list[Any] = []

    async def serve(request: web.Request) -> web.Response:
        body = await request.text()
        received_requests.append((request.method, request.rel_url.raw_path, request.headers.get("Authorization", ""),
                                  json.loads(body) if body else None))
        return web.json_response(response_json, status=status)

    async def main() -> dict[str, Any]:
        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", serve)])
        async with TestServer(app) as server:
            return await send_command(AdaptersCommand(url=str(server.make_url("/v1")), **command_fields), "sk-loom",
                                      "hf-loom")
    return asyncio.run(main()), received_requests[0]


def test_list_sends_the_api_key_but_not_the_source_token() -> None:
    result, request = run_client_command(200, {"data": [ADAPTER_JSON]}, do="ls")
    assert request == ("GET", "/v1/adapters", "Bearer sk-loom", None)
    assert result == {"data": [ADAPTER_JSON]}


def test_load_command_sends_its_options() -> None:
    _, request = run_client_command(200, ADAPTER_JSON, do="load", adapter="org/a", alias="a")
    assert request[0] == "POST"
    assert request[3] == {"id": "org/a", "api_token": "hf-loom", "alias": "a"}


@pytest.mark.parametrize(("name", "path"), [("org/a", "org/a"), ("a b?c#d", "a%20b%3Fc%23d"), ("/looms/a", "/looms/a")])
def test_unload_escapes_any_adapter_name_in_the_path(name: str, path: str) -> None:
    _, request = run_client_command(200, {}, do="unload", adapter=name)
    assert request == ("DELETE", f"/v1/adapters/{path}", "Bearer sk-loom", None)


def test_server_rejection_raises_with_its_reason() -> None:
    with pytest.raises(ChatRequestFailed, match="the server answered 409: it stays"):
        run_client_command(409, {"error": "it stays", "error_type": "conflict"}, do="unload", adapter="org/a")


def test_adapters_are_listed_as_a_table() -> None:
    command = AdaptersCommand("ls", "http://loom")
    private_adapter = {**ADAPTER_JSON, "alias": "looms\x1b[2J", "state": "unloading", "private": True, "stays": True}
    assert format_answer(command, {"data": [ADAPTER_JSON, private_adapter]}, NOW).splitlines() == [
        "adapter           source      state  running  loads  on a shard  on disk  last used",
        "org/a                hub     loaded        3      1        40 B   2.5 MB    5 s ago",
        "looms[2J = org/a     hub  unloading        3      1        40 B   2.5 MB    5 s ago  private, stays"]
    assert format_answer(command, {"data": []}, NOW) == (
        "no adapter has been used or loaded yet; /v1/models lists those that requests can name")


def test_load_and_unload_results_are_printed() -> None:
    assert format_answer(AdaptersCommand("load", ""), ADAPTER_JSON, NOW).splitlines()[1].startswith("org/a  ")
    assert format_answer(AdaptersCommand("unload", "", "org/a"), {},
                         NOW) == "org/a is removed; it is unloaded when no request uses it"


def test_json_output_is_the_server_response() -> None:
    assert json.loads(format_answer(AdaptersCommand("ls", "", as_json=True), {"data": [ADAPTER_JSON]},
                                    NOW)) == {"data": [ADAPTER_JSON]}


@pytest.mark.parametrize(("seconds", "text"), [
    (-0.5, "0 s ago"), (59, "59 s ago"), (90, "2 min ago"), (7200, "2 h ago"), (200_000, "2 d ago")])
def test_elapsed_times_are_formatted_with_units(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.slow
def test_invalid_server_address_prints_one_line_and_exits_with_1() -> None:
    process = subprocess.run([sys.executable, "-P", "-m", "launcher.cli", "adapters", "ls", "ftp://nowhere"],
                             capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == "weft: ftp://nowhere is no address of a server, such as http://127.0.0.1:3000\n"
