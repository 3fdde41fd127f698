"""Application as a whole (error formats, CORS headers); its server: listening, closing, cancellation; the stand-in."""

import asyncio
import gc
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from aiohttp import ClientConnectorError, ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from support.servers.expected_streams import make_text_events
from yarl import URL

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.engine.output_stream import FailedEvent
from router.errors import Cancelled, GenerationFailed, Overloaded
from router.grammars import parameters as grammar_parameters
from router.http.routes.status import ProbeRoutes
from router.http.server import (
    HttpServer,
    StandInServer,
    allow_cors_origins,
    check_http_parser,
    create_listening_socket,
    create_stand_in_app,
)
from router.http.transport.connection_limits import ConnectionLimits, Connections

PAGE_ORIGIN = "https://chat.example.org"
PREFLIGHT_HEADERS = {"Origin": PAGE_ORIGIN, "Access-Control-Request-Method": "POST",
                     "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"}


REFUSED_SCHEMA = {"extends": {}}
MESSAGES = [{"role": "user", "content": "x"}]
OPENAI_FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"schema": REFUSED_SCHEMA}}}
TGI_GRAMMAR = {"inputs": "x", "parameters": {"grammar": {"type": "json", "value": json.dumps(REFUSED_SCHEMA)}}}
LORAX_FORMAT = {"response_format": {"type": "json_object", "schema": json.dumps(REFUSED_SCHEMA)}}
TOOLS = {"messages": MESSAGES, "max_tokens": 1, "tool_choice": {"type": "any"},
         "tools": [{"name": "x", "input_schema": REFUSED_SCHEMA}]}


@pytest.mark.parametrize(("compat", "path", "body"), [
    *(("none", path, TGI_GRAMMAR) for path in ("/", "/generate", "/generate_stream")),
    *(("none", "/vertex", {"instances": [body]}) for body in (TGI_GRAMMAR, {"messages": MESSAGES, **OPENAI_FORMAT})),
    *((compat, "/v1/completions", {"prompt": "x", **OPENAI_FORMAT}) for compat in ("none", "tgi")),
    *((compat, "/v1/chat/completions", {"messages": MESSAGES, **OPENAI_FORMAT}) for compat in ("none", "tgi")),
    ("none", "/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "x",
                                                                 "schema": REFUSED_SCHEMA}}}),
    *(("none", path, TOOLS) for path in ("/v1/messages", "/v1/messages/count_tokens")),
    ("none", "/api/generate", {"model": "x", "prompt": "x", "raw": True, "format": REFUSED_SCHEMA}),
    ("lorax", "/generate", {"inputs": "x", "parameters": LORAX_FORMAT}),
    ("lorax", "/v1/completions", {"prompt": "x", "guided_json": REFUSED_SCHEMA}),
    ("lorax", "/v1/chat/completions", {"messages": MESSAGES, **LORAX_FORMAT})])
def test_schemas_of_long_bodies_are_read_off_the_event_loop(serve, monkeypatch, compat, path, body):
    list_schemas, threads = grammar_parameters.list_schemas, []

    def record_thread(*arguments):
        threads.append(threading.current_thread())
        return list_schemas(*arguments)
    monkeypatch.setattr(grammar_parameters, "list_schemas", record_thread)

    async def scenario(client, _):
        answer = await client.post(path, json={"unknown": "x" * 20_000, **body})
        assert "extends` is not supported" in await answer.text()
    serve(scenario, config=RouterConfig(compat=compat))
    assert threads
    assert threading.main_thread() not in threads


def get_error_type(text):
    answer = json.loads(text)
    assert set(answer) == {"error", "error_type"}
    return answer["error_type"]


def test_unknown_paths_and_wrong_methods_return_errors(serve):
    async def scenario(client, engine):
        nowhere, wrong = await client.get("/nowhere"), await client.put("/generate")
        assert (nowhere.status, get_error_type(await nowhere.text())) == (404, "not_found")
        assert (wrong.status, get_error_type(await wrong.text()),
                wrong.headers["Allow"]) == (405, "method_not_allowed", "POST")
    serve(scenario)


@pytest.mark.parametrize("dialect", [{}, {"compat": "tgi"}, {"compat": "lorax"}, {"dialect": "batching"}])
def test_every_answer_has_the_id_of_its_request(serve, dialect, tmp_path, monkeypatch):
    """Also errors, streams, probes, preflight answers, and the answer to a request without a key."""
    config = RouterConfig(**dialect, api_key="secret", cors_allow_origin=(PAGE_ORIGIN,))
    monkeypatch.chdir(tmp_path)
    key = {"Authorization": "Bearer secret"}

    async def scenario(client, engine):
        routes = {(route.method, route.resource.canonical) for route in client.app.router.routes()}
        answers = [("OPTIONS", "/generate", PREFLIGHT_HEADERS), ("GET", "/nowhere", key), ("PUT", "/generate", key),
                   *((method, path, headers) for method, path in sorted(routes) for headers in (key, {}))]
        for number, (method, path, headers) in enumerate(answers):
            own_id = f"mine {number}"
            async with client.request(method, path, headers=headers | {"x-request-id": own_id}) as answer:
                assert (answer.headers["x-request-id"], path) == (own_id, path)
            async with client.request(method, path, headers=headers) as answer:
                assert len(answer.headers["x-request-id"]) == 32
        for path in ("/generate_stream", "/v1/chat/completions"):
            body = {"inputs": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}
            async with client.post(path, json=body, headers=key | {"x-request-id": path}) as answer:
                assert (answer.status, answer.headers.getall("x-request-id")) == (200, [path])
    serve(scenario, config=config)


def test_stand_in_server_repeats_request_ids(serve):
    async def scenario(_, engine):
        stand_in_server = StandInServer.from_config(LOCAL_CONFIG)
        await stand_in_server.start_during_shutdown(engine)
        async with connect_to(stand_in_server) as client:
            for path in ("/health", "/generate"):
                async with client.get(path, headers={"x-request-id": "mine"}) as answer:
                    assert answer.headers["x-request-id"] == "mine"
    serve(scenario)


@pytest.mark.parametrize(("config", "lines"), [
    (RouterConfig(), ["POST /generate 200", "POST /generate_stream 200", "POST /generate 422 validation",
                      "POST /generate 429 overloaded"]),
    (RouterConfig(request_log=False), [])])
def test_each_request_is_logged_once_without_its_text(serve, caplog, config, lines):
    caplog.set_level(logging.INFO, "router")

    async def scenario(client, engine):
        for path, parameters in (("/generate", {}), ("/generate_stream", {}), ("/generate", {"temperature": -1})):
            await (await client.post(path, json={"inputs": "secret", "parameters": parameters})).read()
        engine.submit_errors = [Overloaded("full", 1.0)]
        await client.post("/generate", json={"inputs": "secret"})
        await client.get("/health")
    serve(scenario, config=config)
    assert [record.getMessage().partition(":")[0] for record in caplog.records if hasattr(record, "fields")] == lines
    assert "secret" not in caplog.text


def test_unknown_fields_are_named_in_the_log(serve, caplog):
    caplog.set_level(logging.INFO, "router")

    async def scenario(client, engine):
        for fields in ({"max_tokns": 5}, {}):
            await client.post("/generate", json={"inputs": "x", **fields})
    serve(scenario)
    assert [record.fields.get("ignored_fields") for record in caplog.records if hasattr(record, "fields")] == [
        "max_tokns", None]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_internal_error_is_logged_and_the_next_request_works(serve, caplog, path):
    async def scenario(client, engine):
        engine.submit_errors = [RuntimeError("/a/secret/path")]
        text = await (await client.post(path, json={"inputs": "x"})).text()
        assert get_error_type(text.removeprefix("data: ")) == "internal"
        assert "secret" not in text
        assert (await client.post(path, json={"inputs": "x"})).status == 200
    serve(scenario)
    assert "RuntimeError: /a/secret/path" in caplog.text


def test_cancelled_request_closes_its_connection_without_a_response(serve, caplog):
    async def scenario(client, engine):
        engine.submit_errors = [Cancelled("gone")]
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b'Content-Length: 14\r\n\r\n{"inputs":"x"}')
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    serve(scenario)
    assert not caplog.records


TEXT_BODY, CHAT_BODY = {"inputs": "x"}, {"messages": [{"role": "user", "content": "x"}]}
NUM_REPETITIONS = 20
REQUEST_CASES = {
    "a text": ("/generate", TEXT_BODY, make_text_events("weft"), None),
    "a text, streamed": ("/generate_stream", TEXT_BODY, make_text_events("weft"), None),
    "a chat": ("/v1/chat/completions", CHAT_BODY, make_text_events("weft"), None),
    "a chat, streamed": ("/v1/chat/completions", CHAT_BODY | {"stream": True}, make_text_events("weft"), None),
    "a text that is refused": ("/generate", TEXT_BODY, [], Overloaded("full")),
    "a stream that is refused": ("/generate_stream", TEXT_BODY, [], Overloaded("full")),
    "a chat that is refused": ("/v1/chat/completions", CHAT_BODY | {"stream": True}, [], Overloaded("full")),
    "a text that makes no sense": ("/generate", {"inputs": 1}, [], None),
    "a text that fails": ("/generate", TEXT_BODY, [FailedEvent(GenerationFailed("broken"))], None),
    "a stream that fails": ("/generate_stream", TEXT_BODY, [FailedEvent(GenerationFailed("broken"))], None),
}


@pytest.mark.parametrize(("path", "body", "events", "refusal"), REQUEST_CASES.values(), ids=REQUEST_CASES)
def test_finished_request_leaves_no_garbage_cycles(serve, path, body, events, refusal):
    """Regression: thousands of rejected requests left cycles, whose collection blocked the event loop for 100 ms."""
    async def send_request(client, engine):
        engine.scripts[:] = [[*events]] if events else []
        engine.submit_errors[:] = [type(refusal)(str(refusal))] if refusal is not None else []
        await (await client.post(path, json=body)).read()
        engine.streams.clear()

    async def scenario(client, engine):
        await send_request(client, engine)
        gc.collect()
        gc.disable()
        try:
            for _ in range(NUM_REPETITIONS):
                await send_request(client, engine)
            assert gc.collect() < NUM_REPETITIONS
        finally:
            gc.enable()
    serve(scenario)


def send_request(serve, *origins, method="POST", path="/generate", api_key="", headers=None, json=None):
    async def scenario(client, engine):
        answer = await client.request(method, path, json=json,
                                      headers={"Origin": PAGE_ORIGIN} if headers is None else headers)
        await answer.read()
        return answer.status, answer.headers, engine.requests
    return serve(scenario, config=RouterConfig(cors_allow_origin=origins, api_key=api_key))


def get_allowed_origin(headers):
    return headers.get("Access-Control-Allow-Origin")


@pytest.mark.parametrize(("origins", "expected"),
                         [(("*",), "*"), ((PAGE_ORIGIN,), PAGE_ORIGIN),
                          (("https://other.org", PAGE_ORIGIN), PAGE_ORIGIN), (("*", PAGE_ORIGIN), "*"),
                          (("https://other.org",), None), ((PAGE_ORIGIN + ":8443",), None),
                          (("https://CHAT.example.org",), None), ((), None)])
def test_only_allowed_origins_get_cors_headers(serve, origins, expected):
    status, headers, _ = send_request(serve, *origins, json={"inputs": "x"})
    assert (status, get_allowed_origin(headers)) == (200, expected)


@pytest.mark.parametrize(("origins", "vary"),
                         [(("*",), None), ((PAGE_ORIGIN,), "Origin"), (("https://other.org",), "Origin")])
def test_vary_header_is_set_if_the_answer_differs_by_origin(serve, origins, vary):
    assert send_request(serve, *origins, json={"inputs": "x"})[1].get("Vary") == vary


def test_no_cors_headers_are_sent_without_configured_origins(serve):
    status, headers, _ = send_request(serve, method="OPTIONS", headers=PREFLIGHT_HEADERS)
    assert status == 405
    assert not [name for name in headers if name.startswith("Access-Control")]


def test_preflight_request_needs_no_api_key(serve):
    status, headers, requests = send_request(serve, PAGE_ORIGIN, method="OPTIONS", api_key="sk-one",
                                             headers=PREFLIGHT_HEADERS)
    assert (status, get_allowed_origin(headers), requests) == (200, PAGE_ORIGIN, [])
    assert headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
    assert headers["Access-Control-Allow-Headers"] == PREFLIGHT_HEADERS["Access-Control-Request-Headers"]
    assert int(headers["Access-Control-Max-Age"]) > 0


def test_preflight_without_a_header_list_allows_authorization(serve):
    headers = {name: value for name, value in PREFLIGHT_HEADERS.items() if not name.endswith("Headers")}
    assert "authorization" in send_request(serve, "*", method="OPTIONS",
                                           headers=headers)[1]["Access-Control-Allow-Headers"]


def test_preflight_from_another_origin_is_not_allowed(serve):
    assert get_allowed_origin(send_request(serve, "https://other.org", method="OPTIONS",
                                           headers=PREFLIGHT_HEADERS)[1]) is None


@pytest.mark.parametrize("left_out", ["Origin", "Access-Control-Request-Method"])
def test_incomplete_preflight_is_an_ordinary_request(serve, left_out):
    headers = {name: value for name, value in PREFLIGHT_HEADERS.items() if name != left_out}
    assert send_request(serve, "*", method="OPTIONS", headers=headers)[0] == 405


@pytest.mark.parametrize(("path", "json", "status"), [
    ("/generate_stream", {"inputs": "x"}, 200), ("/generate", {"inputs": ""}, 422), ("/nowhere", None, 404)])
def test_streams_and_errors_have_cors_headers(serve, path, json, status):
    response_status, headers, _ = send_request(serve, PAGE_ORIGIN, path=path, json=json)
    assert (response_status, get_allowed_origin(headers)) == (status, PAGE_ORIGIN)
    assert headers["Access-Control-Expose-Headers"] == "*"


def test_rejected_api_key_error_is_readable_by_the_page(serve):
    status, headers, _ = send_request(serve, PAGE_ORIGIN, api_key="sk-one", json={"inputs": "x"})
    assert (status, get_allowed_origin(headers)) == (401, PAGE_ORIGIN)


def test_stand_in_app_sends_cors_headers():
    async def scenario():
        door = create_stand_in_app(ProbeRoutes(lambda: "it loads", lambda: None), ApiKeys.from_config(RouterConfig()))
        allow_cors_origins(door, (PAGE_ORIGIN,))
        async with TestClient(TestServer(door)) as client:
            answer = await client.post("/generate", headers={"Origin": PAGE_ORIGIN})
            assert (answer.status, get_allowed_origin(answer.headers)) == (503, PAGE_ORIGIN)
    asyncio.run(scenario())


class SlowApplication:
    """Application with one route, which answers once `may_finish` is set."""

    def __init__(self) -> None:
        self.started, self.may_finish = asyncio.Event(), asyncio.Event()
        self.was_cancelled = False
        self.app = web.Application()
        self.app.add_routes([web.get("/", self.handle), web.post("/", self.echo)])

    async def handle(self, _: web.Request) -> web.Response:
        self.started.set()
        try:
            await self.may_finish.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return web.Response(text="done")

    async def echo(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read())


def run_with_server(
        scenario: Callable[[SlowApplication, HttpServer, str, ClientSession], Awaitable[None]],
        listening_socket: socket.socket | None = None) -> None:
    async def main() -> None:
        slow_app = SlowApplication()
        server = HttpServer(slow_app.app)
        with listening_socket or create_listening_socket("127.0.0.1", 0) as opened:
            port = await server.start(opened)
        async with ClientSession() as client:
            await scenario(slow_app, server, f"http://127.0.0.1:{port}/", client)
        await server.close()
    asyncio.run(main())


async def fetch(client: ClientSession, url: str) -> str:
    async with client.get(url) as response:
        return await response.text()


def test_inherited_socket_is_served() -> None:
    async def scenario(slow_app: SlowApplication, server: HttpServer, url: str, client: ClientSession) -> None:
        assert url == f"http://127.0.0.1:{port}/"
        slow_app.may_finish.set()
        assert await fetch(client, url) == "done"
    listening_socket = socket.create_server(("127.0.0.1", 0))
    port = listening_socket.getsockname()[1]
    run_with_server(scenario, listening_socket)


def test_server_that_stops_accepting_finishes_open_requests() -> None:
    async def scenario(slow_app: SlowApplication, server: HttpServer, url: str, client: ClientSession) -> None:
        answer = asyncio.create_task(fetch(client, url))
        await slow_app.started.wait()
        await server.stop_accepting()
        with pytest.raises(ClientConnectorError):
            await fetch(client, url)
        slow_app.may_finish.set()
        assert await answer == "done"
    run_with_server(scenario)


def test_open_connection_gets_one_more_response_after_accepting_stops() -> None:
    async def scenario(slow_app: SlowApplication, server: HttpServer, url: str, client: ClientSession) -> None:
        slow_app.may_finish.set()
        port = URL(url).port
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert b"done" in await send_http_request(*connections[1])
        await server.stop_accepting()
        for reader, writer in connections:
            assert b"Connection: close" in await send_http_request(reader, writer)
            assert await reader.read() == b""
            writer.close()
    run_with_server(scenario)


async def send_http_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
    return await reader.readuntil(b"done")


@pytest.mark.parametrize("sent", [
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Name: \0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\0\r\n\r\n", b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n"])
def test_malformed_http_is_rejected_without_logging(caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    """Regression: each was logged as an error with a traceback, as if the server had failed."""
    async def scenario(slow_app: SlowApplication, server: HttpServer, url: str, client: ClientSession) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        writer.write(sent)
        assert b" 400 " in await reader.readline()
        writer.close()
    run_with_server(scenario)
    assert not caplog.records


@pytest.mark.parametrize("head_and_body", [
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", b"Content-Length: +4\r\n\r\nabcd",
    b"Content-Length: 4, 4\r\n\r\nabcd", b"Content-Length: 0x4\r\n\r\nabcd", b"Content-Length: -4\r\n\r\nabcd",
    b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: \xd1\x81hunked\r\n\r\n0\r\n\r\n", b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"X-Name: a\r\n folded\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n4_0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n"])
def test_request_that_a_proxy_may_read_otherwise_smuggles_no_second_one(head_and_body: bytes) -> None:
    """A server that reads the end of a body elsewhere than a proxy in front takes the rest for another request."""
    async def scenario(slow_app: SlowApplication, server: HttpServer, url: str, client: ClientSession) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + head_and_body + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        slow_app.may_finish.set()
        answers = await reader.read()  # up to the end of the connection
        writer.close()
        assert answers.startswith(b"HTTP/1.0 400 ")
        assert answers.count(b"HTTP/1.") == 1
        assert not slow_app.started.is_set()
    run_with_server(scenario)


def test_stand_in_server_answers_on_the_same_port_until_it_is_stopped() -> None:
    async def scenario(slow_app: SlowApplication, server: HttpServer, url: str, client: ClientSession) -> None:
        stand_in_app = web.Application()
        stand_in_app.add_routes([web.get("/", answer_closed)])
        slow_app.may_finish.set()
        stand_in_server = StandInServer(listening_socket, ApiKeys({}), (), "none")
        await server.stop_accepting()
        await stand_in_server.start(stand_in_app)
        async with client.get(url) as answer:
            assert (await answer.text(), answer.headers["Connection"]) == ("closed", "close")
        await stand_in_server.stop()
        await stand_in_server.stop()
    with create_listening_socket("127.0.0.1", 0) as listening_socket:
        run_with_server(scenario, listening_socket.dup())


async def answer_closed(_: web.Request) -> web.Response:
    return web.Response(text="closed")


def test_client_disconnect_cancels_the_handler() -> None:
    async def scenario(slow_app: SlowApplication, server: HttpServer, url: str, client: ClientSession) -> None:
        answer = asyncio.create_task(fetch(client, url))
        await slow_app.started.wait()
        answer.cancel()
        await asyncio.wait([answer])
        await server.close()
        assert slow_app.was_cancelled
    run_with_server(scenario)


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


def test_server_and_stand_in_share_the_limit_of_connections():
    """Each had its own, so that both together exceeded the limit of descriptors."""
    async def main():
        slow_app, shared = SlowApplication(), Connections(ConnectionLimits(max_connections=1))
        server = HttpServer(slow_app.app, shared)
        with create_listening_socket("127.0.0.1", 0) as listener:
            stand_in = StandInServer(listener, ApiKeys.from_config(RouterConfig()), (), "none", shared)
            port = await server.start(listener)
            async with ClientSession() as client:
                running = asyncio.create_task(fetch(client, f"http://127.0.0.1:{port}/"))
                await slow_app.started.wait()
                await server.stop_accepting()
                await stand_in.start(web.Application())
                async with client.get(f"http://127.0.0.1:{port}/info") as answer:
                    assert answer.status == 503
                    assert "--max-connections" in (await answer.json())["error"]
                slow_app.may_finish.set()
                assert await running == "done"
            await server.close()
            await stand_in.stop()
    asyncio.run(main())


def test_server_without_a_parser_in_c_does_not_start():
    completed = subprocess.run(
        [sys.executable, "-c", "from router.http.server import check_http_parser; check_http_parser()"],
        env=os.environ | {"AIOHTTP_NO_EXTENSIONS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True,
        text=True, check=False)
    assert "aiohttp has no HTTP parser in C here" in completed.stderr
    check_http_parser()
