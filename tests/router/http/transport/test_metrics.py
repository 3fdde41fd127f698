"""Request metrics on /metrics, over a scripted engine."""

import asyncio

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer
from support.fake_adapter_store import Store
from support.metrics_page import check, failures, read

from router.api_keys import Keys
from router.config import RouterConfig
from router.engine.stream import FailedEvent, TokenEvent
from router.errors import (
    AdapterFailed,
    AdapterMissing,
    Cancelled,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    TemplateFailed,
    TimedOut,
    ToolsFailed,
)
from router.http.app import create_door
from router.http.routes.probes import Probes
from router.http.transport.metrics import Metrics, err_of
from router.telemetry.instruments import CONTENT_TYPE

PATHS = ["/generate", "/generate_stream", "/v1/chat/completions"]
LATE = [TokenEvent(97, "a", -0.5, False)]  # delivered before the failure


def asked(path, **more):
    body = {"messages": [{"role": "user", "content": "x"}]} if path.startswith("/v1") else {"inputs": "x"}
    return body | more


async def counted(client):
    async with client.get("/metrics") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
        page = await answer.text()
    check(page)
    samples = read(page)
    return samples["tgi_request_count"], samples["tgi_request_success"], failures(samples)


async def ask(client, path, **more):
    async with client.post(path, json=asked(path, **more)) as answer:
        return await answer.text()


@pytest.mark.parametrize("path", PATHS)
def test_a_request_counts_once_and_so_does_its_success(serve, path):
    async def scenario(client, engine):
        for _ in range(3):
            await ask(client, path)
        assert await counted(client) == (3, 3, {})
    serve(scenario)


def test_several_texts_for_one_client_are_one_request(serve):
    async def scenario(client, engine):
        await ask(client, "/generate", parameters={"best_of": 2, "do_sample": True})
        assert len(engine.requests) == 2
        assert await counted(client) == (1, 1, {})
    serve(scenario)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("error", "err"), [
    (Overloaded("full"), "overloaded"), (NotReady("gone"), "overloaded"), (TimedOut("late"), "timeout"),
    (InvalidRequest("no"), "validation"), (RuntimeError("a mistake"), "incomplete")])
def test_a_refusal_is_counted_by_why_on_streams_too(serve, path, error, err):
    async def scenario(client, engine):
        engine.refusals = [error]
        await ask(client, path)
        assert await counted(client) == (1, 0, {err: 1})
    serve(scenario)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_under_way_is_counted_by_why(serve, path, stream):
    async def scenario(client, engine):
        told = await ask(client, path, stream=stream)
        assert "broken" in told
        assert await counted(client) == (1, 0, {"generation": 1})
    serve(scenario, [*LATE, FailedEvent(GenerationFailed("broken"))])


@pytest.mark.parametrize(("path", "body", "error", "err"), [
    ("/embed", {"inputs": "x"}, EmbeddingFailed, "embedding_failure"),
    ("/v1/embeddings", {"input": ["x", "y"]}, EmbeddingFailed, "embedding_failure"),
    ("/classify_batch", {"inputs": ["x"]}, ClassificationFailed, "classification_failure")])
def test_what_fails_to_be_read_is_counted_as_lorax_does(serve, path, body, error, err):
    async def scenario(client, engine):
        assert (await client.post(path, json=body)).status == 500
        assert await counted(client) == (1, 0, {err: 1})
    serve(scenario, [FailedEvent(error("broken"))], embeddings=True, classification=True, labels=("O",))


@pytest.mark.parametrize("name", ["nobody", "broken"])
def test_an_adapter_that_cannot_be_had_is_counted_as_lorax_does(serve, name):
    async def scenario(client, engine):
        await ask(client, "/generate", parameters={"adapter_id": name})
        assert await counted(client) == (1, 0, {"download_adapter": 1})
    serve(scenario, store=Store())


@pytest.mark.parametrize(("path", "body"), [
    ("/generate", {"inputs": ""}), ("/generate", {"inputs": 5}), ("/generate", {}),
    ("/generate_stream", {"inputs": "x", "parameters": {"top_p": 7.0}}), ("/v1/chat/completions", {"messages": []})])
def test_what_breaks_a_rule_is_counted_as_that(serve, path, body):
    async def scenario(client, engine):
        await (await client.post(path, json=body)).read()
        assert await counted(client) == (1, 0, {"validation": 1})
    serve(scenario)


def test_messages_without_a_prompt_are_the_templates_failure(serve):
    async def scenario(client, engine):
        await ask(client, "/v1/chat/completions")
        assert await counted(client) == (1, 0, {"template": 1})
    serve(scenario, template=None)


def test_a_client_that_leaves_is_counted_as_dropped(serve):
    async def scenario(client, engine):
        asking = asyncio.create_task(client.post("/generate", json={"inputs": "x"}))
        await engine.asked.wait()
        assert await counted(client) == (1, 0, {})
        asking.cancel()
        await engine.left_alone.wait()
        await asyncio.sleep(0)
        assert await counted(client) == (1, 0, {"dropped": 1})
    serve(scenario, [])


@pytest.mark.parametrize("failed", [Cancelled("slow"), ConnectionResetError("gone")])
def test_a_client_that_was_given_up_is_counted_as_dropped(serve, failed):
    async def scenario(client, engine):
        engine.refusals = [failed]
        with pytest.raises(ClientPayloadError):
            await ask(client, "/generate_stream")
        assert await counted(client) == (1, 0, {"dropped": 1})
    serve(scenario)


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/info"), ("GET", "/health"), ("GET", "/nowhere"), ("PUT", "/generate"), ("GET", "/metrics")])
def test_what_asks_for_no_text_is_not_counted(serve, method, path):
    async def scenario(client, engine):
        await (await client.request(method, path)).read()
        assert await counted(client) == (0, 0, {})
    serve(scenario)


def test_the_page_needs_no_key_and_requests_without_one_are_not_counted(serve):
    async def scenario(client, engine):
        assert (await client.post("/generate", json={"inputs": "x"})).status == 401
        assert await counted(client) == (0, 0, {})
    serve(scenario, config=RouterConfig(api_key="sk-one"))


def test_the_page_says_whether_the_server_is_ready(serve):
    async def scenario(client, engine):
        for engine.ailing, ready in (("", 1), ("no step has ended", 0)):
            assert read(await (await client.get("/metrics")).text())["tgi_ready"] == ready
    serve(scenario)


def test_the_page_is_there_until_the_last_has_ended(serve):
    async def scenario(client, engine):
        engine.ailing = "the server is shutting down"
        probes = Probes(engine.ailment, lambda: None)
        door = create_door(probes, Keys.of(RouterConfig()), Metrics(engine).routes())
        async with TestClient(TestServer(door)) as late:
            assert await counted(late) == (0, 0, {})
            assert (await late.post("/generate")).status == 503
            assert await counted(late) == (0, 0, {})
    serve(scenario)


def test_clients_of_lorax_may_ask_for_json(serve):
    async def scenario(client, engine):
        await ask(client, "/generate")
        answer = await client.get("/metrics", headers={"Accept": "application/json"})
        assert answer.content_type == "application/json"
        told = await answer.json()
        assert told["tgi_request_count"] == {"type": "counter", "data": [{"key": "tgi_request_count", "value": 1}]}
        assert {"key": 'tgi_request_failure{err="dropped"}', "value": 0} in told["tgi_request_failure"]["data"]
        assert len(told["tgi_request_duration"]["data"]) == 38
        plain = await client.get("/metrics", headers={"Accept": "text/plain"})
        assert read(await plain.text()) == {
            sample["key"]: sample["value"] for family in told.values() for sample in family["data"]}
    serve(scenario, config=RouterConfig(compat="lorax"))


def test_others_get_the_page_whatever_they_accept(serve):
    async def scenario(client, engine):
        answer = await client.get("/metrics", headers={"Accept": "application/json"})
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    serve(scenario)


@pytest.mark.parametrize(("error", "err"), [
    (TemplateFailed("no"), "template"), (ToolsFailed("no"), "validation"),
    (AdapterMissing("no"), "download_adapter"), (AdapterFailed("no"), "download_adapter"),
    (EmbeddingFailed("no"), "embedding_failure"), (ClassificationFailed("no"), "classification_failure"),
    (GenerationFailed("no"), "generation"),
    (asyncio.CancelledError(), "dropped"), (web.HTTPBadRequest(), "validation"),
    (web.HTTPRequestEntityTooLarge(1, 2), "validation"), (web.HTTPInternalServerError(), "incomplete"),
    (KeyError("a mistake"), "incomplete")])
def test_errors_have_the_names_of_tgi_or_of_lorax(error, err):
    assert err_of(type(error)) == err
