"""Tests of keys, deadlines and explanations of requests over real sockets."""

import asyncio

import pytest
from support.in_process_server import body, events_of, play

from router.engine import engine

HTTP = {"http": True}


async def explain(weft, name):
    async with weft.http.get(f"/v1/requests/{name}/explain") as answer:
        assert answer.status == 200
        told = await answer.json()
    assert sum(interval["ms"] for interval in told["intervals"]) == told["total_ms"] == sum(told["by_cause"].values())
    return told


def ask(weft, path, prompt, length, **headers):
    return weft.http.post(path, json=body(prompt, length, details=True),
                          headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_headers_and_explanation_tell_the_same(tmp_path):
    async def story(weft):
        async with ask(weft, "/generate", "a loom", 5, x_request_id="mine") as answer:
            headers = answer.headers
        told = await explain(weft, "mine")
        assert headers["x-request-id"] == told["id"] == "mine"
        assert (told["state"], told["prompt_tokens"], told["generated_tokens"]) == ("over", 6, 5)
        assert (headers["x-cached-tokens"], told["cached_tokens"]) == ("0", 0)
        for name in ("prefill", "decode"):
            assert float(headers[f"x-{name}-ms"]) == pytest.approx(told["by_cause"][name], abs=0.25)
        await weft.check_idle()
    play(story, tmp_path, **HTTP)


def test_a_stream_says_at_once_which_request_it_is(tmp_path):
    async def story(weft):
        async with ask(weft, "/generate_stream", "a loom", 5, x_request_id="mine") as answer:
            assert answer.headers["x-request-id"] == "mine"
            await weft.gate.arrival()
            assert (await explain(weft, "mine"))["state"] == "running"
            async with ask(weft, "/generate_stream", "a loom", 5, x_request_id="mine") as other:
                assert len(other.headers["x-request-id"]) == 32
            weft.gate.open()
            await answer.text()
        told = await explain(weft, "mine")
        assert (told["state"], told["generated_tokens"]) == ("over", 5)
        await weft.check_idle()
    play(story, tmp_path, gated=True, **HTTP)


def test_who_waits_for_a_place_is_told_why(tmp_path):
    async def story(weft):
        async with ask(weft, "/generate_stream", "a loom", 3) as first:
            await weft.gate.arrival()
            submitted = weft.watch("submit")
            waiting = asyncio.create_task(weft.http.post("/generate", json=body("another", 3),
                                                         headers={"x-request-id": "second"}))
            await submitted.get()
            told = await explain(weft, "second")
            assert told["state"] == "waiting"
            assert set(told["by_cause"]) & {"queue", "batch"}
            weft.gate.open()
            await first.text()
            answer = await waiting
        assert float(answer.headers["x-queue-ms"]) > 0
        assert answer.headers["x-wait-reason"] in {"queue", "batch"}
        await weft.check_idle()
    play(story, tmp_path, gated=True, max_batch_size=1, **HTTP)


def test_what_cannot_start_in_time_is_told_so(tmp_path):
    async def story(weft):
        async with ask(weft, "/generate_stream", "a loom", 3) as first:
            await weft.gate.arrival()
            async with ask(weft, "/generate", "late", 3, x_request_timeout_ms="20", x_request_id="late") as answer:
                assert (answer.status, answer.headers["x-request-id"]) == (408, "late")
                assert (await answer.json())["error_type"] == "timeout"
            async with ask(weft, "/generate_stream", "late", 3, x_request_timeout_ms="20") as answer:
                (error,) = events_of(await answer.text())
                assert error["error_type"] == "timeout"
            told = await explain(weft, "late")
            assert (told["state"], told["generated_tokens"]) == ("over", 0)
            assert told["total_ms"] >= 20 - 1
            weft.gate.open()
            await first.text()
        await weft.check_idle()
    play(story, tmp_path, gated=True, max_batch_size=1, **HTTP)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_what_was_said_in_time_is_the_answer(tmp_path, monkeypatch, path):
    async def story(weft):
        time = 0.0
        monkeypatch.setattr(engine, "now", lambda: time)
        asking = asyncio.create_task(weft.http.post(path, json=body("a loom", 100, details=True),
                                                    headers={"x-request-timeout-ms": "60000"}))
        await weft.gate.arrival()
        weft.gate.let(3)
        await weft.shards.reach(5)
        time = 61.0
        weft.gate.open()
        answer = await asking
        told = await answer.json() if path == "/generate" else events_of(await answer.text())[-1]
        assert (answer.status, told["details"]["finish_reason"]) == (200, "timeout")
        assert 3 <= told["details"]["generated_tokens"] < 100
        assert told["generated_text"] == weft.expected_text("a loom", told["details"]["generated_tokens"])
        await weft.check_idle()
    play(story, tmp_path, gated=True, **HTTP)


def test_every_route_but_health_needs_a_key(tmp_path):
    (tmp_path / "keys.json").write_text('{"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}}')

    async def story(weft):
        a, b = ({"Authorization": f"Bearer {key}"} for key in ("sk-a", "sk-b"))
        async with ask(weft, "/generate", "a loom", 3) as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with ask(weft, "/generate", "a loom", 3, x_request_id="mine", **a) as answer:
            assert answer.status == 200
        for headers, status in ((a, 200), (b, 404), ({}, 401)):
            async with weft.http.get("/v1/requests/mine/explain", headers=headers) as answer:
                assert answer.status == status
        async with weft.http.get("/health") as answer:
            assert answer.status == 200
    play(story, tmp_path, api_keys=str(tmp_path / "keys.json"), **HTTP)
