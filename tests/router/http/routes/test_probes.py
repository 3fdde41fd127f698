"""Probes, and the 503 answers of all other routes while the server is not ready."""

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.app import create_stand_in_app
from router.http.routes.probes import ProbeRoutes

LOADING_PROGRESS = {"phase": "load", "bytes": 1, "total": 4, "eta_seconds": 3.0}


def run_with_stand_in_app(scenario, *, unavailable_reason="the server is starting", progress=LOADING_PROGRESS,
                          config=None):
    async def main():
        stand_in_app = create_stand_in_app(ProbeRoutes(lambda: unavailable_reason, lambda: progress),
                                           ApiKeys.from_config(config or RouterConfig()))
        async with TestClient(TestServer(stand_in_app)) as client:
            await scenario(client)
    asyncio.run(main())


async def get_json(client, path):
    async with client.get(path) as answer:
        return answer.status, await answer.json()


def test_ready_server_answers_all_probes(serve):
    async def scenario(client, engine):
        assert await get_json(client, "/ready") == (200, {"status": "ready"})
        assert await get_json(client, "/live") == (200, {"status": "alive"})
        assert await get_json(client, "/startup") == (200, {"phase": "ready"})
        assert (await client.get("/ping")).status == 200
    serve(scenario)


@pytest.mark.parametrize("path", ["/health", "/", "/ping"])
def test_health_answer_is_empty(serve, path):
    async def scenario(client, engine):
        answer = await client.get(path)
        assert (answer.status, await answer.read()) == (200, b"")
        engine.unavailable_reason = "the shards are lost"
        assert await get_json(client, path) == (503, {"error": "unhealthy", "error_type": "healthcheck"})
    serve(scenario)


def test_unavailable_server_is_not_ready_but_alive(serve):
    async def scenario(client, engine):
        engine.unavailable_reason = "no step has ended"
        assert await get_json(client, "/ready") == (503, {"error": "no step has ended", "error_type": "not_ready"})
        assert await get_json(client, "/live") == (200, {"status": "alive"})
        assert await get_json(client, "/startup") == (200, {"phase": "ready"})
        assert (await client.get("/ping")).status == 503
    serve(scenario)


def test_startup_probe_reports_the_loading_progress():
    async def scenario(client):
        assert await get_json(client, "/startup") == (503, LOADING_PROGRESS)
        assert await get_json(client, "/ready") == (503, {"error": "the server is starting", "error_type": "not_ready"})
        assert (await get_json(client, "/live"))[0] == 200
        assert await get_json(client, "/health") == (503, {"error": "unhealthy", "error_type": "healthcheck"})
    run_with_stand_in_app(scenario)


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/generate"), ("POST", "/"), ("GET", "/info"), ("PUT", "/ready")])
def test_other_routes_return_503_with_retry_after_during_startup(method, path):
    async def scenario(client):
        answer = await client.request(method, path, data=b"x" * 100_000)
        assert answer.status == 503
        assert (await answer.json())["error"] == "Model is not ready: the server is starting"
        assert int(answer.headers["Retry-After"]) >= 1
    run_with_stand_in_app(scenario)


def test_api_key_is_required_during_startup_except_for_probes():
    async def scenario(client):
        assert (await client.post("/generate")).status == 401
        for path in ("/health", "/live", "/ping", "/ready", "/startup"):
            assert (await client.get(path)).status in {200, 503}
    run_with_stand_in_app(scenario, config=RouterConfig(api_key="sk-one"))
