import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestServer

from launcher.ray_serve.forwarding import (
    AnswerHead,
    ForwardedRequest,
    NoAnswer,
    drop_headers,
    forward,
    make_error_body,
    open_client,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def run_origin(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def collect(handler: Handler, request: ForwardedRequest) -> tuple[AnswerHead, bytes]:
    async with run_origin(handler) as url, open_client() as client:
        head, *parts = [part async for part in forward(client, url, request)]
        assert isinstance(head, AnswerHead)
        return head, b"".join(part for part in parts if isinstance(part, bytes))


async def echo(request: web.Request) -> web.Response:
    return web.json_response({"method": request.method, "target": request.raw_path, "body": (await request.text()),
                              "headers": [[name.decode(), value.decode()] for name, value in request.raw_headers]},
                             status=418, headers={"X-Note": "n", "Keep-Alive": "timeout=5"})


def test_request_arrives_as_it_was_sent_but_for_its_connection() -> None:
    sent = ForwardedRequest("PUT", "/a%2Fb/%C3%A9?q=%20&r", (
        (b"host", b"example.org"), (b"x-two", b"1"), (b"x-two", b"2"), (b"connection", b"close, x-hop"),
        (b"x-hop", b"h"), (b"transfer-encoding", b"chunked"), (b"content-length", b"3"),
        (b"accept-encoding", b"br")), b"h\xc3\xa9")
    head, body = asyncio.run(collect(echo, sent))
    seen = json.loads(body)
    assert head.status == 418
    assert (seen["method"], seen["target"], seen["body"]) == ("PUT", "/a%2Fb/%C3%A9?q=%20&r", "h\u00e9")
    assert seen["headers"] == [
        ["host", "example.org"], ["x-two", "1"], ["x-two", "2"], ["accept-encoding", "br"], ["Content-Length", "3"]]
    assert (b"X-Note", b"n") in head.headers
    assert not {b"keep-alive", b"date", b"server"} & {name.lower() for name, _ in head.headers}


def test_parts_arrive_as_they_are_written() -> None:
    """The origin waits for each part to be read before it writes the next."""
    seen = asyncio.Event()

    async def write(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b"one", b"two"):
            await response.write(part)
            await seen.wait()
            seen.clear()
        return response

    async def run() -> list[bytes]:
        async with run_origin(write) as url, open_client() as client:
            parts = list[bytes]()
            async for part in forward(client, url, ForwardedRequest("GET", "/", ())):
                if isinstance(part, bytes):
                    parts.append(part)
                    seen.set()
            return parts

    assert asyncio.run(run()) == [b"one", b"two"]


def test_compressed_body_and_redirect_pass_unchanged() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=302, body=b"not really gzip", headers={"Location": "/x", "Content-Encoding": "gzip"})

    head, body = asyncio.run(collect(answer, ForwardedRequest("GET", "/", ())))
    assert (head.status, body) == (302, b"not really gzip")


def test_server_that_cannot_be_reached_gives_no_answer() -> None:
    async def run() -> object:
        async with open_client() as client:
            return await anext(forward(client, "http://127.0.0.1:1", ForwardedRequest("GET", "/", ())))

    assert isinstance(asyncio.run(run()), NoAnswer)


def test_answer_that_breaks_off_raises() -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport
        request.transport.close()
        return response

    with pytest.raises(ClientPayloadError):
        asyncio.run(collect(break_off, ForwardedRequest("GET", "/", ())))


def test_server_notices_when_the_answer_is_left() -> None:
    async def run() -> bool:
        left = asyncio.Event()

        async def write_forever(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x")
                    await asyncio.sleep(0.01)
            except (ConnectionError, asyncio.CancelledError):
                left.set()
                raise

        async with run_origin(write_forever) as url, open_client() as client:
            parts = forward(client, url, ForwardedRequest("GET", "/", ()))
            await anext(parts)
            await parts.aclose()
            async with asyncio.timeout(10):
                return await left.wait()

    assert asyncio.run(run())


def test_headers_that_connection_names_are_dropped() -> None:
    assert drop_headers([(b"Connection", b"X-A"), (b"x-a", b"1"), (b"x-b", b"2")], frozenset({b"connection"})) == (
        (b"x-b", b"2"),)


def test_errors_have_the_form_of_their_dialect() -> None:
    assert json.loads(make_error_body("/v1/completions", "gone", "overloaded"))["error"]["message"] == "gone"
    assert json.loads(make_error_body("/generate", "gone", "overloaded")) == {
        "error": "gone", "error_type": "overloaded"}
