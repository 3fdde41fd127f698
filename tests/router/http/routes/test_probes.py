"""Probes, the 503 answers of all other routes while the server is not ready, and the counts of requests on /metrics."""

import asyncio

import pytest
from aiohttp import ClientPayloadError
from aiohttp.test_utils import TestClient, TestServer
from support.metrics_page import check_metrics_page, get_failure_counts, parse_metrics
from support.servers.fake_adapter_store import FakeAdapterStore

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, TokenEvent
from router.errors import (
    Cancelled,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    TimedOut,
)
from router.http.page.routes import StartupProgressPageRoutes
from router.http.routes.status import MetricsRoutes, ProbeRoutes
from router.http.server import create_stand_in_app
from router.telemetry.instruments import CONTENT_TYPE
from router.telemetry.metric_definitions import REQUEST_DURATION_BUCKETS

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


def test_root_is_not_ready_before_the_server_is():
    """The engine may be ready while adapters are still preloaded."""
    async def main():
        stand_in_app = create_stand_in_app(
            ProbeRoutes(lambda: "", lambda: LOADING_PROGRESS), ApiKeys.from_config(RouterConfig()),
            make_page_routes=lambda probe: StartupProgressPageRoutes(probe, lambda: LOADING_PROGRESS).routes())
        async with TestClient(TestServer(stand_in_app)) as client:
            for path in ("/", "/health", "/ping", "/ready"):
                assert (await client.get(path)).status == 503
            assert "25%" in await (await client.get("/", headers={"Accept": "text/html"})).text()
    asyncio.run(main())


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


GENERATION_PATHS = ["/generate", "/generate_stream", "/v1/chat/completions"]
PARTIAL_SCRIPT = [TokenEvent(97, "a", -0.5, False)]  # delivered before the failure


def make_body(path, **fields):
    body = {"messages": [{"role": "user", "content": "x"}]} if path.startswith("/v1") else {"inputs": "x"}
    return body | fields


async def read_request_counts(client):
    async with client.get("/metrics") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
        page = await answer.text()
    check_metrics_page(page)
    samples = parse_metrics(page)
    return samples["tgi_request_count"], samples["tgi_request_success"], get_failure_counts(samples)


async def post_text(client, path, **fields):
    async with client.post(path, json=make_body(path, **fields)) as answer:
        return await answer.text()


@pytest.mark.parametrize("path", GENERATION_PATHS)
def test_request_and_its_success_are_counted_once(serve, path):
    async def scenario(client, engine):
        for _ in range(3):
            await post_text(client, path)
        assert await read_request_counts(client) == (3, 3, {})
    serve(scenario)


def test_best_of_counts_as_one_request(serve):
    async def scenario(client, engine):
        await post_text(client, "/generate", parameters={"best_of": 2, "do_sample": True})
        assert len(engine.requests) == 2
        assert await read_request_counts(client) == (1, 1, {})
    serve(scenario)


@pytest.mark.parametrize("path", GENERATION_PATHS)
@pytest.mark.parametrize(("error", "err"), [
    (Overloaded("full"), "overloaded"), (NotReady("gone"), "overloaded"), (TimedOut("late"), "timeout"),
    (InvalidRequest("no"), "validation"), (RuntimeError("a mistake"), "incomplete")])
def test_rejection_is_counted_by_reason_on_streams_too(serve, path, error, err):
    async def scenario(client, engine):
        engine.submit_errors = [error]
        await post_text(client, path)
        assert await read_request_counts(client) == (1, 0, {err: 1})
    serve(scenario)


@pytest.mark.parametrize("path", GENERATION_PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_failure_during_generation_is_counted_by_reason(serve, path, stream):
    async def scenario(client, engine):
        text = await post_text(client, path, stream=stream)
        assert "broken" in text
        assert await read_request_counts(client) == (1, 0, {"generation": 1})
    serve(scenario, [*PARTIAL_SCRIPT, FailedEvent(GenerationFailed("broken"))])


@pytest.mark.parametrize(("path", "body", "error", "err"), [
    ("/embed", {"inputs": "x"}, EmbeddingFailed, "embedding_failure"),
    ("/v1/embeddings", {"input": ["x", "y"]}, EmbeddingFailed, "embedding_failure"),
    ("/classify_batch", {"inputs": ["x"]}, ClassificationFailed, "classification_failure")])
def test_pooling_failure_is_counted_like_lorax(serve, path, body, error, err):
    async def scenario(client, engine):
        assert (await client.post(path, json=body)).status == 500
        assert await read_request_counts(client) == (1, 0, {err: 1})
    serve(scenario, [FailedEvent(error("broken"))], embeddings=True, classification=True, labels=("O",))


@pytest.mark.parametrize("name", ["nobody", "broken"])
def test_adapter_failure_is_counted_like_lorax(serve, name):
    async def scenario(client, engine):
        await post_text(client, "/generate", parameters={"adapter_id": name})
        assert await read_request_counts(client) == (1, 0, {"download_adapter": 1})
    serve(scenario, store=FakeAdapterStore())


@pytest.mark.parametrize(("path", "body"), [
    ("/generate", {"inputs": ""}), ("/generate", {"inputs": 5}), ("/generate", {}),
    ("/generate_stream", {"inputs": "x", "parameters": {"top_p": 7.0}}), ("/v1/chat/completions", {"messages": []})])
def test_invalid_request_is_counted_as_validation(serve, path, body):
    async def scenario(client, engine):
        await (await client.post(path, json=body)).read()
        assert await read_request_counts(client) == (1, 0, {"validation": 1})
    serve(scenario)


def test_missing_chat_template_is_counted_as_template_failure(serve):
    async def scenario(client, engine):
        await post_text(client, "/v1/chat/completions")
        assert await read_request_counts(client) == (1, 0, {"template": 1})
    serve(scenario, template=None)


def test_client_disconnect_is_counted_as_dropped(serve):
    async def scenario(client, engine):
        task = asyncio.create_task(client.post("/generate", json={"inputs": "x"}))
        await engine.request_received.wait()
        assert await read_request_counts(client) == (1, 0, {})
        task.cancel()
        await engine.client_disconnected.wait()
        await asyncio.sleep(0)
        assert await read_request_counts(client) == (1, 0, {"dropped": 1})
    serve(scenario, [])


@pytest.mark.parametrize("failed", [Cancelled("slow"), ConnectionResetError("gone")])
def test_cancelled_slow_client_is_counted_as_dropped(serve, failed):
    async def scenario(client, engine):
        engine.submit_errors = [failed]
        with pytest.raises(ClientPayloadError):
            await post_text(client, "/generate_stream")
        assert await read_request_counts(client) == (1, 0, {"dropped": 1})
    serve(scenario)


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/info"), ("GET", "/health"), ("GET", "/nowhere"), ("PUT", "/generate"), ("GET", "/metrics")])
def test_other_routes_are_not_counted(serve, method, path):
    async def scenario(client, engine):
        await (await client.request(method, path)).read()
        assert await read_request_counts(client) == (0, 0, {})
    serve(scenario)


def test_metrics_page_needs_no_api_key_and_unauthorized_requests_are_not_counted(serve):
    async def scenario(client, engine):
        assert (await client.post("/generate", json={"inputs": "x"})).status == 401
        assert await read_request_counts(client) == (0, 0, {})
    serve(scenario, config=RouterConfig(api_key="sk-one"))


def test_metrics_page_reports_readiness(serve):
    async def scenario(client, engine):
        for engine.unavailable_reason, ready in (("", 1), ("no step has ended", 0)):
            assert parse_metrics(await (await client.get("/metrics")).text())["tgi_ready"] == ready
    serve(scenario)


def test_metrics_page_is_served_until_the_last_request_ends(serve):
    async def scenario(client, engine):
        engine.unavailable_reason = "the server is shutting down"
        probes = ProbeRoutes(engine.why_unavailable, lambda: None)
        door = create_stand_in_app(probes, ApiKeys.from_config(RouterConfig()), MetricsRoutes(engine).routes())
        async with TestClient(TestServer(door)) as late:
            assert await read_request_counts(late) == (0, 0, {})
            assert (await late.post("/generate")).status == 503
            assert await read_request_counts(late) == (0, 0, {})
    serve(scenario)


def test_lorax_metrics_are_available_as_json(serve):
    async def scenario(client, engine):
        await post_text(client, "/generate")
        answer = await client.get("/metrics", headers={"Accept": "application/json"})
        assert answer.content_type == "application/json"
        families = await answer.json()
        assert families["tgi_request_count"] == {"type": "counter", "data": [{"key": "tgi_request_count", "value": 1}]}
        assert {"key": 'tgi_request_failure{err="dropped"}', "value": 0} in families["tgi_request_failure"]["data"]
        num_samples = len(REQUEST_DURATION_BUCKETS) + 3  # +Inf, sum and count besides
        assert len(families["tgi_request_duration"]["data"]) == num_samples
        plain = await client.get("/metrics", headers={"Accept": "text/plain"})
        assert parse_metrics(await plain.text()) == {
            sample["key"]: sample["value"] for family in families.values() for sample in family["data"]}
    serve(scenario, config=RouterConfig(compat="lorax"))


def test_metrics_page_ignores_the_accept_header_without_lorax(serve):
    async def scenario(client, engine):
        answer = await client.get("/metrics", headers={"Accept": "application/json"})
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    serve(scenario)
