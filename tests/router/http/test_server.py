"""HTTP server: listening, closing and cancellation; and the stand-in on its port."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import ClientConnectorError, ClientSession, web
from yarl import URL

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.server import HttpServer, StandInServer, create_listening_socket


class SlowApplication:
    """Application with one route, which answers once `may_finish` is set."""

    def __init__(self) -> None:
        self.started, self.may_finish = asyncio.Event(), asyncio.Event()
        self.was_cancelled = False
        self.app = web.Application()
        self.app.add_routes([web.get("/", self.handle)])

    async def handle(self, _: web.Request) -> web.Response:
        self.started.set()
        try:
            await self.may_finish.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return web.Response(text="done")


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
