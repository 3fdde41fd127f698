"""Many pooling inputs in one request: order of results, bounded concurrency, all or none."""

import asyncio
import json

import pytest
from support.expected_streams import lived
from support.in_process_server import play
from support.simulated_world import expected_told

from router.config import RouterConfig
from router.engine.stream import FailedEvent, ToldEvent
from router.errors import EmbeddingFailed
from router.http.transport.pooled import MOST_AT_ONCE, most_at_once
from router.request import Request, Wish

MANY = [f"text {number}" for number in range(100)]
SMALL = RouterConfig(max_concurrent_requests=4)  # four at once
ANSWERED = [ToldEvent([1.0] * 16, lived(prefill=0.5))]


def ask(http, texts, **headers):
    return http.post("/v1/embeddings", json={"input": texts},
                     headers={name.replace("_", "-"): value for name, value in headers.items()})


def vectors(model, texts):
    return [expected_told(Request("r", tuple(text.encode()), 0, wish=Wish.VECTOR), model) for text in texts]


async def rows(answer):
    return [row["embedding"] for row in json.loads(await answer.read())["data"]]


def watched(engine):
    """Record the number of unfinished requests at each submission."""
    seen, submit = [], engine.submit

    def counted(*given):
        stream = submit(*given)
        seen.append(engine.num_unfinished)
        return stream

    engine.submit = counted
    return seen


def names(requests):
    return {request.id for request in requests}


def test_all_are_answered_in_their_order_and_only_some_are_in_the_house(tmp_path):
    async def story(weft):
        seen = watched(weft.engine)
        async with ask(weft.http, MANY) as answer:
            assert await rows(answer) == vectors(weft.model, MANY)
        assert (len(seen), max(seen)) == (len(MANY), MOST_AT_ONCE)
        await weft.check_idle()

    play(story, tmp_path, http=True)


@pytest.mark.parametrize(("given", "at_once"), [
    ({}, 32), ({"max_concurrent_requests": 1000}, 32), ({"max_concurrent_requests": 40}, 10),
    ({"max_concurrent_requests": 1}, 4), ({"max_concurrent_requests": 40, "max_client_batch_size": 20}, 20),
    ({"max_client_batch_size": 1000}, 32)])
def test_a_quarter_of_the_house_is_for_one_client(given, at_once):
    assert most_at_once(RouterConfig(**given)) == at_once


def test_those_for_whom_there_is_no_room_wait_for_those_that_are_in(tmp_path):
    async def story(weft):
        seen = watched(weft.engine)
        async with ask(weft.http, MANY) as answer:
            assert await rows(answer) == vectors(weft.model, MANY)
        assert max(seen) == 2
        await weft.check_idle()

    play(story, tmp_path, http=True, max_concurrent_requests=2)


def test_who_finds_no_room_at_all_is_refused(tmp_path):
    async def story(weft):
        stream = weft.submit("in the house", 3)
        async with ask(weft.http, MANY) as answer:
            assert (answer.status, json.loads(await answer.read())["error"]["code"]) == (429, "rate_limit_exceeded")
        weft.gate.open()
        stream.close()
        await weft.check_idle()

    play(story, tmp_path, http=True, gated=True, max_concurrent_requests=1)


def test_nothing_is_run_where_one_is_wrong(serve):
    async def scenario(client, engine):
        async with ask(client, [*MANY, ""]) as answer:
            assert answer.status == 400
        assert engine.requests == []
    serve(scenario, embeddings=True)


def test_a_failure_ends_all(serve):
    """Inputs under way are cancelled, and the remaining ones are never submitted."""
    async def scenario(client, engine):
        async with ask(client, MANY) as answer:
            assert (answer.status, json.loads(await answer.read())["error"]["type"]) == (500, "server_error")
        assert len(engine.requests) == 4
        assert names(engine.left) == names(engine.requests[:3])
    serve(scenario, [], [], [], [FailedEvent(EmbeddingFailed("broken"))], config=SMALL, embeddings=True)


def test_whoever_leaves_takes_all_along(serve):
    async def scenario(client, engine):
        asking = asyncio.create_task(ask(client, MANY).__aenter__())
        await engine.asked.wait()
        asking.cancel()
        await engine.left_alone.wait()
        assert len(engine.requests) == 4
        assert names(engine.left) == names(engine.requests)
    serve(scenario, [], [], [], [], config=SMALL, embeddings=True)


def test_time_that_passed_with_others_is_gone(serve):
    async def scenario(client, engine):
        asking = asyncio.create_task(ask(client, MANY[:5], x_request_timeout_ms="60000").__aenter__())
        await engine.asked.wait()
        for stream in engine.streams[:]:
            stream.put(ANSWERED[0])
        async with await asking as answer:
            assert answer.status == 200
        *first, last = [request.timeout for request in engine.requests]
        assert len(first) == 4
        assert last < min(first)
    serve(scenario, [], [], [], [], config=SMALL, embeddings=True)


def test_those_behind_are_not_run_when_time_ran_out(serve, monkeypatch):
    async def scenario(client, engine):
        asking = asyncio.create_task(ask(client, MANY[:5], x_request_timeout_ms="60000").__aenter__())
        await engine.asked.wait()
        monkeypatch.setattr("router.validation.validator.now", lambda: float("inf"))
        for stream in engine.streams[:]:
            stream.put(ANSWERED[0])
        async with await asking as answer:
            assert (answer.status, json.loads(await answer.read())["error"]["type"]) == (408, "timeout_error")
        assert len(engine.requests) == 4
    serve(scenario, [], [], [], [], config=SMALL, embeddings=True)


def test_the_head_is_of_all_together(serve):
    async def scenario(client, engine):
        async with ask(client, ["a", "bcd", "ef"]) as answer:
            await answer.read()
        told = ("x-prompt-tokens", "x-compute-characters", "x-queue-ms", "x-prefill-ms")
        assert [answer.headers[name] for name in told] == ["6", "6", "750.0", "375.0"]
    serve(scenario, embeddings=True)
