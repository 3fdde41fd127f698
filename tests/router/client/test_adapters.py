"""Command-line client of the adapter routes, against a scripted server."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router.client.adapters import Order, ago, ask, shown, size
from router.client.chat import Failed

NOW = 1_000_000.0
ADAPTER = {
    "id": "org/a", "object": "adapter", "alias": None, "source": "hub", "digest": "d", "base": "", "state": "here",
    "bytes_on_disk": 2_500_000, "bytes_on_shard": 40, "last_used": int(NOW) - 5, "requests": 3, "loads": 1,
    "private": False, "stays": False}


def asked(status: int, told: Any, **order: Any) -> tuple[dict[str, Any], tuple[str, str, str, Any]]:
    """Return the client's result, and method, path, key and body of the request that the server received."""
    seen: list[Any] = []

    async def serve(request: web.Request) -> web.Response:
        body = await request.text()
        seen.append((request.method, request.rel_url.raw_path, request.headers.get("Authorization", ""),
                     json.loads(body) if body else None))
        return web.json_response(told, status=status)

    async def main() -> dict[str, Any]:
        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", serve)])
        async with TestServer(app) as server:
            return await ask(Order(url=str(server.make_url("/v1")), **order), "sk-loom", "hf-loom")
    return asyncio.run(main()), seen[0]


def test_adapters_are_asked_for_with_the_key_and_without_the_token() -> None:
    told, question = asked(200, {"data": [ADAPTER]}, do="ls")
    assert question == ("GET", "/v1/adapters", "Bearer sk-loom", None)
    assert told == {"data": [ADAPTER]}


def test_what_is_given_is_sent() -> None:
    _, question = asked(200, ADAPTER, do="load", adapter="org/a", alias="a")
    assert question[0] == "POST"
    assert question[3] == {"id": "org/a", "api_token": "hf-loom", "alias": "a"}


@pytest.mark.parametrize(("name", "path"), [("org/a", "org/a"), ("a b?c#d", "a%20b%3Fc%23d"), ("/looms/a", "/looms/a")])
def test_any_name_can_be_forgotten(name: str, path: str) -> None:
    _, question = asked(200, {}, do="unload", adapter=name)
    assert question == ("DELETE", f"/v1/adapters/{path}", "Bearer sk-loom", None)


def test_why_the_server_does_not_do_it_is_told() -> None:
    with pytest.raises(Failed, match="the server answered 409: it stays"):
        asked(409, {"error": "it stays", "error_type": "conflict"}, do="unload", adapter="org/a")


def test_adapters_are_a_table() -> None:
    order = Order("ls", "http://loom")
    other = {**ADAPTER, "alias": "looms\x1b[2J", "state": "leaving", "private": True, "stays": True}
    assert shown(order, {"data": [ADAPTER, other]}, NOW).splitlines() == [
        "adapter           source    state  requests  loads  on a shard  on disk  last used",
        "org/a                hub     here         3      1        40 B   2.5 MB    5 s ago",
        "looms[2J = org/a     hub  leaving         3      1        40 B   2.5 MB    5 s ago  private, stays"]
    assert shown(order, {"data": []}, NOW) == "no adapters are known"


def test_what_was_loaded_and_what_is_forgotten_is_told() -> None:
    assert shown(Order("load", ""), ADAPTER, NOW).splitlines()[1].startswith("org/a  ")
    assert shown(Order("unload", "", "org/a"), {}, NOW) == "org/a is forgotten, and leaves as soon as nobody needs it"


def test_programs_get_what_the_server_said() -> None:
    assert json.loads(shown(Order("ls", "", as_json=True), {"data": [ADAPTER]}, NOW)) == {"data": [ADAPTER]}


@pytest.mark.parametrize(("num_bytes", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_560_000, "2.6 MB"), (7e9, "7.0 GB")])
def test_sizes_have_units(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (-0.5, "0 s ago"), (59, "59 s ago"), (90, "2 min ago"), (7200, "2 h ago"), (200_000, "2 d ago")])
def test_times_have_units(seconds: float, text: str) -> None:
    assert ago(seconds) == text


@pytest.mark.slow
def test_a_server_that_is_not_there_is_one_line_and_an_exit_code() -> None:
    order = json.dumps({"do": "ls", "url": "nowhere"})
    ended = subprocess.run([sys.executable, "-P", "-m", "router.client.adapters", order], capture_output=True,
                           text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "weft: nowhere is no address of a server, such as http://127.0.0.1:3000\n"
