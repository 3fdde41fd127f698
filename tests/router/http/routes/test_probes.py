"""Probes, and the 503 answers of all other routes while the server is not ready."""

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer

from router.api_keys import Keys
from router.config import RouterConfig
from router.http.app import create_door
from router.http.routes.probes import Probes

LOADING = {"phase": "load", "bytes": 1, "total": 4, "eta_seconds": 3.0}


def at_the_door(scenario, *, ailment="the server is starting", startup=LOADING, config=None):
    async def main():
        door = create_door(Probes(lambda: ailment, lambda: startup), Keys.of(config or RouterConfig()))
        async with TestClient(TestServer(door)) as client:
            await scenario(client)
    asyncio.run(main())


async def get(client, path):
    async with client.get(path) as answer:
        return answer.status, await answer.json()


def test_a_server_in_good_health_says_so(serve):
    async def scenario(client, engine):
        assert await get(client, "/ready") == (200, {"status": "ready"})
        assert await get(client, "/live") == (200, {"status": "alive"})
        assert await get(client, "/startup") == (200, {"phase": "ready"})
        assert (await client.get("/ping")).status == 200
    serve(scenario)


@pytest.mark.parametrize("path", ["/health", "/", "/ping"])
def test_health_is_an_empty_answer(serve, path):
    async def scenario(client, engine):
        answer = await client.get(path)
        assert (answer.status, await answer.read()) == (200, b"")
        engine.ailing = "the shards are lost"
        assert await get(client, path) == (503, {"error": "unhealthy", "error_type": "healthcheck"})
    serve(scenario)


def test_what_ails_it_is_the_reason_and_it_lives_all_the_same(serve):
    async def scenario(client, engine):
        engine.ailing = "no step has ended"
        assert await get(client, "/ready") == (503, {"error": "no step has ended", "error_type": "not_ready"})
        assert await get(client, "/live") == (200, {"status": "alive"})
        assert await get(client, "/startup") == (200, {"phase": "ready"})
        assert (await client.get("/ping")).status == 503
    serve(scenario)


def test_while_it_starts_the_phase_is_told():
    async def scenario(client):
        assert await get(client, "/startup") == (503, LOADING)
        assert await get(client, "/ready") == (503, {"error": "the server is starting", "error_type": "not_ready"})
        assert (await get(client, "/live"))[0] == 200
        assert await get(client, "/health") == (503, {"error": "unhealthy", "error_type": "healthcheck"})
    at_the_door(scenario)


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/generate"), ("POST", "/"), ("GET", "/info"), ("PUT", "/ready")])
def test_all_others_may_come_again_later(method, path):
    async def scenario(client):
        answer = await client.request(method, path, data=b"x" * 100_000)
        assert answer.status == 503
        assert (await answer.json())["error"] == "Model is not ready: the server is starting"
        assert int(answer.headers["Retry-After"]) >= 1
    at_the_door(scenario)


def test_a_key_is_needed_at_the_door_as_well_but_not_for_probes():
    async def scenario(client):
        assert (await client.post("/generate")).status == 401
        for path in ("/health", "/live", "/ping", "/ready", "/startup"):
            assert (await client.get(path)).status in {200, 503}
    at_the_door(scenario, config=RouterConfig(api_key="sk-one"))
