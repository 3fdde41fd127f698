"""Generating whole answers and opening streams, independent of the dialect."""

import asyncio

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer

from router.errors import Cancelled, GenerationFailed
from router.http.transport.generate import open_stream, together


async def after(turns, result):
    for _ in range(turns):
        await asyncio.sleep(0)
    if isinstance(result, Exception):
        raise result
    return result


def test_answers_come_in_the_order_of_their_requests():
    assert asyncio.run(together([after(3, "a"), after(1, "b")])) == ["a", "b"]


def test_the_first_failure_ends_the_others_and_is_raised_as_it_is():
    with pytest.raises(GenerationFailed, match="first"):
        asyncio.run(together([after(9, GenerationFailed("last")), after(1, GenerationFailed("first"))]))


def streamed(error):
    async def handler(request):
        async with open_stream(request, {"x-more": "yes"}, 1.0, lambda error: f"data: {error}\n\n") as out:
            out.write(b"data: a\n\n")
            if error is not None:
                raise error
        return out.response

    async def main():
        app = web.Application()
        app.add_routes([web.get("/", handler)])
        async with TestClient(TestServer(app)) as client:
            answer = await client.get("/")
            assert answer.headers["x-more"] == "yes"
            return await answer.text()
    return asyncio.run(main())


def test_a_stream_ends_with_its_block():
    assert streamed(None) == "data: a\n\n"


def test_what_the_block_raises_is_the_last_event():
    assert streamed(GenerationFailed("broken")) == "data: a\n\ndata: broken\n\n"


@pytest.mark.parametrize("error", [Cancelled("too slow"), ConnectionResetError("gone")])
def test_who_is_given_up_sees_that_the_end_is_missing(error):
    with pytest.raises(ClientPayloadError):
        streamed(error)
