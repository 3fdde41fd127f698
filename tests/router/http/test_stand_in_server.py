"""Stand-in server: probes and 503 answers on the port before requests are accepted and during shutdown."""

import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import ClientSession

from router.config import RouterConfig
from router.http.stand_in_server import StandInServer

LOCAL_CONFIG = RouterConfig(hostname="127.0.0.1", port=0)
LOADING_PROGRESS = {"phase": "load"}


@asynccontextmanager
async def connect_to(stand_in_server):
    """Open a client of the stand-in server's port; close the server at the end."""
    try:
        async with ClientSession(f"http://127.0.0.1:{get_port(stand_in_server.listening_socket)}") as client:
            yield client
    finally:
        await stand_in_server.close()


def get_port(listening_socket):
    return listening_socket.getsockname()[1]


async def get_json(client, path):
    async with client.get(path) as answer:
        return answer.status, await answer.json()


def test_stand_in_server_reports_startup_progress_and_rejects_other_requests(serve):
    async def scenario(_, engine):
        engine.unavailable_reason = "the server is starting"
        stand_in_server = StandInServer.from_config(LOCAL_CONFIG)
        await stand_in_server.start_during_startup(engine, lambda: LOADING_PROGRESS)
        async with connect_to(stand_in_server) as client:
            assert await get_json(client, "/startup") == (503, LOADING_PROGRESS)
            assert (await get_json(client, "/metrics"))[1]["error"] == "Model is not ready: the server is starting"
    serve(scenario)


def test_metrics_are_served_during_shutdown(serve):
    async def scenario(_, engine):
        stand_in_server = StandInServer.from_config(LOCAL_CONFIG)
        await stand_in_server.start_during_shutdown(engine)
        async with connect_to(stand_in_server) as client:
            assert await get_json(client, "/startup") == (200, {"phase": "ready"})
            async with client.get("/metrics") as answer:
                assert (answer.status, answer.content_type) == (200, "text/plain")
    serve(scenario)


def test_stand_in_server_uses_an_inherited_socket(serve):
    async def scenario(_, engine):
        inherited_socket = socket.create_server(("127.0.0.1", 0))
        port = get_port(inherited_socket)
        stand_in_server = StandInServer.from_config(LOCAL_CONFIG, inherited_socket.detach())
        assert get_port(stand_in_server.listening_socket) == port
        await stand_in_server.start_during_startup(engine, lambda: LOADING_PROGRESS)
        async with connect_to(stand_in_server) as client:
            assert await get_json(client, "/live") == (200, {"status": "alive"})
    serve(scenario)


def test_stand_in_server_sends_cors_headers(serve):
    async def scenario(_, engine):
        stand_in_server = StandInServer.from_config(replace(LOCAL_CONFIG, cors_allow_origin=("https://loom",)))
        await stand_in_server.start_during_startup(engine, lambda: LOADING_PROGRESS)
        async with connect_to(stand_in_server) as client, client.get("/live",
                                                                     headers={"Origin": "https://loom"}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "https://loom"
    serve(scenario)


def test_unreadable_key_file_is_reported_before_the_port_is_opened(tmp_path):
    with pytest.raises(ValueError, match="--api-keys"):
        StandInServer.from_config(replace(LOCAL_CONFIG, api_keys=str(tmp_path / "keys.json")))
