"""Many pooling inputs in one request: order of results, bounded concurrency, all or none."""

import asyncio
import json

import pytest
from support.scheduling.simulated_world import compute_expected_pooled
from support.servers.expected_streams import make_finished_timeline
from support.servers.in_process_server import play_scenario

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, PoolingEvent
from router.errors import EmbeddingFailed
from router.http.routes.pooling import MAX_CONCURRENT_TEXTS, compute_max_concurrent_texts
from router.request import Request, RequestKind

MANY_TEXTS = [f"text {number}" for number in range(100)]
SMALL_CONFIG = RouterConfig(max_concurrent_requests=4)  # four at once
POOLING_SCRIPT = [PoolingEvent([1.0] * 16, make_finished_timeline(prefill_seconds=0.5))]


def post_embeddings(http, texts, **headers):
    return http.post("/v1/embeddings", json={"input": texts},
                     headers={name.replace("_", "-"): value for name, value in headers.items()})


def expected_vectors(model, texts):
    return [compute_expected_pooled(Request("r", tuple(text.encode()), 0, kind=RequestKind.EMBED), model)
            for text in texts]


async def read_embeddings(answer):
    return [row["embedding"] for row in json.loads(await answer.read())["data"]]


def get_request_ids(requests):
    return {request.id for request in requests}


def test_all_texts_are_answered_in_order_with_bounded_concurrency(tmp_path):
    async def scenario(weft):
        seen = weft.record_num_unfinished()
        async with post_embeddings(weft.http_session, MANY_TEXTS) as answer:
            assert await read_embeddings(answer) == expected_vectors(weft.model, MANY_TEXTS)
        assert (len(seen), max(seen)) == (len(MANY_TEXTS), MAX_CONCURRENT_TEXTS)
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True)


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, 32), ({"max_concurrent_requests": 1000}, 32), ({"max_concurrent_requests": 40}, 10),
    ({"max_concurrent_requests": 1}, 4), ({"max_concurrent_requests": 40, "max_client_batch_size": 20}, 20),
    ({"max_client_batch_size": 1000}, 32)])
def test_one_client_may_use_a_quarter_of_the_concurrency_limit(settings, expected):
    assert compute_max_concurrent_texts(RouterConfig(**settings)) == expected


def test_texts_without_a_free_slot_wait_for_earlier_ones(tmp_path):
    async def scenario(weft):
        seen = weft.record_num_unfinished()
        async with post_embeddings(weft.http_session, MANY_TEXTS) as answer:
            assert await read_embeddings(answer) == expected_vectors(weft.model, MANY_TEXTS)
        assert max(seen) == 2
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, max_concurrent_requests=2)


def test_request_is_rejected_if_no_slot_is_free_at_all(tmp_path):
    async def scenario(weft):
        stream = weft.submit("in the house", 3)
        async with post_embeddings(weft.http_session, MANY_TEXTS) as answer:
            assert (answer.status, json.loads(await answer.read())["error"]["code"]) == (429, "rate_limit_exceeded")
        weft.gate.release_all()
        stream.close()
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, gated=True, max_concurrent_requests=1)


def test_nothing_is_run_if_one_text_is_invalid(serve):
    async def scenario(client, engine):
        async with post_embeddings(client, [*MANY_TEXTS, ""]) as answer:
            assert answer.status == 400
        assert engine.requests == []
    serve(scenario, embeddings=True)


def test_failure_of_one_text_fails_the_whole_request(serve):
    """Inputs under way are cancelled, and the remaining ones are never submitted."""
    async def scenario(client, engine):
        async with post_embeddings(client, MANY_TEXTS) as answer:
            assert (answer.status, json.loads(await answer.read())["error"]["type"]) == (500, "server_error")
        assert len(engine.requests) == 4
        assert get_request_ids(engine.disconnected_requests) == get_request_ids(engine.requests[:3])
    serve(scenario, [], [], [], [FailedEvent(EmbeddingFailed("broken"))], config=SMALL_CONFIG, embeddings=True)


def test_client_disconnect_cancels_all_texts(serve):
    async def scenario(client, engine):
        task = asyncio.create_task(post_embeddings(client, MANY_TEXTS).__aenter__())
        await engine.request_received.wait()
        task.cancel()
        await engine.client_disconnected.wait()
        assert len(engine.requests) == 4
        assert get_request_ids(engine.disconnected_requests) == get_request_ids(engine.requests)
    serve(scenario, [], [], [], [], config=SMALL_CONFIG, embeddings=True)


def test_timeout_of_later_texts_is_reduced_by_the_time_already_spent(serve):
    async def scenario(client, engine):
        task = asyncio.create_task(post_embeddings(client, MANY_TEXTS[:5], x_request_timeout_ms="60000").__aenter__())
        await engine.request_received.wait()
        for stream in engine.streams[:]:
            stream.put(POOLING_SCRIPT[0])
        async with await task as answer:
            assert answer.status == 200
        *first, last = [request.timeout for request in engine.requests]
        assert len(first) == 4
        assert last < min(first)
    serve(scenario, [], [], [], [], config=SMALL_CONFIG, embeddings=True)


def test_remaining_texts_are_not_run_after_the_timeout(serve, monkeypatch):
    async def scenario(client, engine):
        task = asyncio.create_task(post_embeddings(client, MANY_TEXTS[:5], x_request_timeout_ms="60000").__aenter__())
        await engine.request_received.wait()
        monkeypatch.setattr("router.validation.validator.now", lambda: float("inf"))
        for stream in engine.streams[:]:
            stream.put(POOLING_SCRIPT[0])
        async with await task as answer:
            assert (answer.status, json.loads(await answer.read())["error"]["type"]) == (408, "timeout_error")
        assert len(engine.requests) == 4
    serve(scenario, [], [], [], [], config=SMALL_CONFIG, embeddings=True)


def test_headers_sum_over_all_texts(serve):
    async def scenario(client, engine):
        async with post_embeddings(client, ["a", "bcd", "ef"]) as answer:
            await answer.read()
        header_names = ("x-prompt-tokens", "x-compute-characters", "x-queue-ms", "x-prefill-ms")
        assert [answer.headers[name] for name in header_names] == ["6", "6", "750.0", "375.0"]
    serve(scenario, embeddings=True)
