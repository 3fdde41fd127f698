"""Generating whole answers and opening streams, independent of the dialect."""

import asyncio

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer

from router.errors import Cancelled, GenerationFailed
from router.http.transport.services import gather_or_cancel, open_response_stream


async def finish_after(num_turns, result):
    for _ in range(num_turns):
        await asyncio.sleep(0)
    if isinstance(result, Exception):
        raise result
    return result


def test_results_are_in_the_order_of_the_requests():
    assert asyncio.run(gather_or_cancel([finish_after(3, "a"), finish_after(1, "b")])) == ["a", "b"]


def test_first_failure_cancels_the_others_and_is_raised():
    with pytest.raises(GenerationFailed, match="first"):
        asyncio.run(gather_or_cancel([finish_after(9, GenerationFailed("last")),
                                      finish_after(1, GenerationFailed("first"))]))


def read_stream(error):
    async def handler(request):
        async with open_response_stream(request, {"x-more": "yes"}, 1.0, lambda error: f"data: {error}\n\n") as out:
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


def test_stream_ends_when_its_block_ends():
    assert read_stream(None) == "data: a\n\n"


def test_exception_in_the_block_is_the_last_event():
    assert read_stream(GenerationFailed("broken")) == "data: a\n\ndata: broken\n\n"


@pytest.mark.parametrize("error", [Cancelled("too slow"), ConnectionResetError("gone")])
def test_cancelled_stream_is_cut_off(error):
    with pytest.raises(ClientPayloadError):
        read_stream(error)
