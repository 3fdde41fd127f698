"""Entrance: probes and 503 answers on the port before requests are accepted and during shutdown."""

import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import ClientSession

from router.config import RouterConfig
from router.http.entrance import Entrance

HERE = RouterConfig(hostname="127.0.0.1", port=0)
LOADING = {"phase": "load"}


@asynccontextmanager
async def coming_to(entrance):
    """Open a client of the entrance's port; close the entrance at the end."""
    try:
        async with ClientSession(f"http://127.0.0.1:{port_of(entrance.listener)}") as client:
            yield client
    finally:
        await entrance.close()


def port_of(listener):
    return listener.getsockname()[1]


async def get(client, path):
    async with client.get(path) as answer:
        return answer.status, await answer.json()


def test_before_anything_is_served_probes_hear_how_far_the_start_is_and_all_others_may_come_again(serve):
    async def scenario(_, engine):
        engine.ailing = "the server is starting"
        entrance = Entrance.of(HERE)
        await entrance.shut(engine, lambda: LOADING)
        async with coming_to(entrance) as client:
            assert await get(client, "/startup") == (503, LOADING)
            assert (await get(client, "/metrics"))[1]["error"] == "Model is not ready: the server is starting"
    serve(scenario)


def test_who_is_served_to_the_end_is_still_counted(serve):
    async def scenario(_, engine):
        entrance = Entrance.of(HERE)
        await entrance.shut_again(engine)
        async with coming_to(entrance) as client:
            assert await get(client, "/startup") == (200, {"phase": "ready"})
            async with client.get("/metrics") as answer:
                assert (answer.status, answer.content_type) == (200, "text/plain")
    serve(scenario)


def test_it_is_at_the_socket_that_was_inherited(serve):
    async def scenario(_, engine):
        given = socket.create_server(("127.0.0.1", 0))
        port = port_of(given)
        entrance = Entrance.of(HERE, given.detach())
        assert port_of(entrance.listener) == port
        await entrance.shut(engine, lambda: LOADING)
        async with coming_to(entrance) as client:
            assert await get(client, "/live") == (200, {"status": "alive"})
    serve(scenario)


def test_pages_of_other_websites_may_read_what_is_told_there(serve):
    async def scenario(_, engine):
        entrance = Entrance.of(replace(HERE, cors_allow_origin=("https://loom",)))
        await entrance.shut(engine, lambda: LOADING)
        async with coming_to(entrance) as client, client.get("/live", headers={"Origin": "https://loom"}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "https://loom"
    serve(scenario)


def test_keys_that_cannot_be_read_are_told_before_the_port_is_taken(tmp_path):
    with pytest.raises(ValueError, match="--api-keys"):
        Entrance.of(replace(HERE, api_keys=str(tmp_path / "keys.json")))
