"""Tests of keys, deadlines and explanations of requests over real sockets."""

import asyncio
import json

import pytest
from support.servers.in_process_server import make_generate_body, parse_stream_events, play_scenario

from router.engine import engine

HTTP_SETTINGS = {"http": True}


async def get_explanation(weft, request_id):
    async with weft.http_session.get(f"/v1/requests/{request_id}/explain") as answer:
        assert answer.status == 200
        explanation = await answer.json()
    assert sum(interval["ms"] for interval in explanation["intervals"]) == explanation["total_ms"] == sum(
        explanation["by_cause"].values())
    return explanation


def post_prompt(weft, path, prompt, max_new_tokens, **headers):
    return weft.http_session.post(path, json=make_generate_body(prompt, max_new_tokens, details=True),
                                  headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_headers_and_explanation_agree(tmp_path):
    async def scenario(weft):
        async with post_prompt(weft, "/generate", "a loom", 5, x_request_id="mine") as answer:
            headers = answer.headers
        explanation = await get_explanation(weft, "mine")
        assert headers["x-request-id"] == explanation["id"] == "mine"
        assert (explanation["state"], explanation["prompt_tokens"], explanation["generated_tokens"]) == ("over", 6, 5)
        assert (headers["x-cached-tokens"], explanation["cached_tokens"]) == ("0", 0)
        for name in ("prefill", "decode"):
            assert float(headers[f"x-{name}-ms"]) == pytest.approx(explanation["by_cause"][name], abs=0.25)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, **HTTP_SETTINGS)


def test_stream_headers_contain_the_request_id(tmp_path):
    async def scenario(weft):
        async with post_prompt(weft, "/generate_stream", "a loom", 5, x_request_id="mine") as answer:
            assert answer.headers["x-request-id"] == "mine"
            await weft.gate.wait_for_step()
            assert (await get_explanation(weft, "mine"))["state"] == "running"
            async with post_prompt(weft, "/generate_stream", "a loom", 5, x_request_id="mine") as duplicate:
                assert len(duplicate.headers["x-request-id"]) == 32
            weft.gate.release_all()
            await answer.text()
        explanation = await get_explanation(weft, "mine")
        assert (explanation["state"], explanation["generated_tokens"]) == ("over", 5)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, **HTTP_SETTINGS)


def test_waiting_request_reports_its_wait_reason(tmp_path):
    async def scenario(weft):
        async with post_prompt(weft, "/generate_stream", "a loom", 3) as first:
            await weft.gate.wait_for_step()
            submitted = weft.watch_scheduler_calls("submit")
            waiting = asyncio.create_task(weft.http_session.post("/generate", json=make_generate_body("another", 3),
                                                                 headers={"x-request-id": "second"}))
            await submitted.get()
            explanation = await get_explanation(weft, "second")
            assert explanation["state"] == "waiting"
            assert set(explanation["by_cause"]) & {"queue", "batch"}
            weft.gate.release_all()
            await first.text()
            answer = await waiting
        assert float(answer.headers["x-queue-ms"]) > 0
        assert answer.headers["x-wait-reason"] in {"queue", "batch"}
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, max_batch_size=1, **HTTP_SETTINGS)


def test_request_that_cannot_start_in_time_fails_with_timeout(tmp_path):
    async def scenario(weft):
        async with post_prompt(weft, "/generate_stream", "a loom", 3) as first:
            await weft.gate.wait_for_step()
            async with post_prompt(weft, "/generate", "late", 3, x_request_timeout_ms="20",
                                   x_request_id="late") as answer:
                assert (answer.status, answer.headers["x-request-id"]) == (408, "late")
                assert (await answer.json())["error_type"] == "timeout"
            async with post_prompt(weft, "/generate_stream", "late", 3, x_request_timeout_ms="20") as answer:
                (error,) = parse_stream_events(await answer.text())
                assert error["error_type"] == "timeout"
            explanation = await get_explanation(weft, "late")
            assert (explanation["state"], explanation["generated_tokens"]) == ("over", 0)
            assert explanation["total_ms"] >= 20 - 1
            weft.gate.release_all()
            await first.text()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, max_batch_size=1, **HTTP_SETTINGS)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_timed_out_request_returns_the_tokens_generated_in_time(tmp_path, monkeypatch, path):
    async def scenario(weft):
        time = 0.0
        monkeypatch.setattr(engine, "now", lambda: time)
        posting = asyncio.create_task(weft.http_session.post(path, json=make_generate_body("a loom", 100, details=True),
                                                             headers={"x-request-timeout-ms": "60000"}))
        await weft.gate.wait_for_step()
        weft.gate.release_steps(3)
        await weft.shards.wait_for_num_steps(5)
        time = 61.0
        weft.gate.release_all()
        answer = await posting
        body = await answer.json() if path == "/generate" else parse_stream_events(await answer.text())[-1]
        assert (answer.status, body["details"]["finish_reason"]) == (200, "timeout")
        assert 3 <= body["details"]["generated_tokens"] < 100
        assert body["generated_text"] == weft.compute_expected_text("a loom", body["details"]["generated_tokens"])
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, **HTTP_SETTINGS)


def test_all_routes_but_health_need_an_api_key(tmp_path):
    (tmp_path / "keys.json").write_text('{"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}}')

    async def scenario(weft):
        a, b = ({"Authorization": f"Bearer {key}"} for key in ("sk-a", "sk-b"))
        async with post_prompt(weft, "/generate", "a loom", 3) as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with post_prompt(weft, "/generate", "a loom", 3, x_request_id="mine", **a) as answer:
            assert answer.status == 200
        for headers, status in ((a, 200), (b, 404), ({}, 401)):
            async with weft.http_session.get("/v1/requests/mine/explain", headers=headers) as answer:
                assert answer.status == status
        async with weft.http_session.get("/health") as answer:
            assert answer.status == 200
    play_scenario(scenario, tmp_path, api_keys=str(tmp_path / "keys.json"), **HTTP_SETTINGS)


def test_request_is_cancelled_by_its_id(tmp_path):
    async def scenario(weft):
        async with (post_prompt(weft, "/generate_stream", "a loom", 500, x_request_id="mine") as stream,
                    post_prompt(weft, "/generate_stream", "a loom", 3, x_request_id="mine-not") as other):
            await weft.gate.wait_for_step()
            async with weft.http_session.delete("/v1/requests/mine") as answer:
                assert (answer.status, await answer.json()) == (200, {"id": "mine", "cancelled": 1})
            [event] = parse_stream_events(await stream.text())
            assert event == {"error": "Request was cancelled: DELETE /v1/requests/ID was sent for it",
                             "error_type": "cancelled"}
            async with weft.http_session.delete("/v1/requests/mine") as answer:
                assert answer.status == 404
                assert "no unfinished request of this id" in (await answer.json())["error"]["message"]
            weft.gate.release_all()
            assert parse_stream_events(await other.text())[-1]["generated_text"]
        assert (await get_explanation(weft, "mine"))["state"] == "over"
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, **HTTP_SETTINGS)


def test_all_choices_and_prompts_of_a_request_are_cancelled(tmp_path):
    async def scenario(weft):
        async with weft.http_session.post("/v1/completions", headers={"x-request-id": "mine"}, json={
                "prompt": ["a", "b"], "n": 2, "max_tokens": 500, "stream": True}) as stream:
            await weft.gate.wait_for_step()
            async with weft.http_session.delete("/v1/requests/mine") as answer:
                assert await answer.json() == {"id": "mine", "cancelled": 4}
            first_event, *_ = (await stream.text()).removeprefix("data: ").split("\n\n")
            error = json.loads(first_event)["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "request_cancelled")
        weft.gate.release_all()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, **HTTP_SETTINGS)


def test_whole_answer_is_cancelled_too_and_only_by_its_own_tenant(tmp_path):
    keys = {name: {"Authorization": f"Bearer sk-{name}"} for name in ("one", "two")}
    (tmp_path / "keys.json").write_text('{"sk-one": {"tenant": "one"}, "sk-two": {"tenant": "two"}}')

    async def scenario(weft):
        pending = asyncio.ensure_future(weft.http_session.post(
            "/generate", json=make_generate_body("a loom", 500), headers=keys["one"] | {"x-request-id": "mine"}))
        await weft.gate.wait_for_step()
        for name, status in (("two", 404), ("one", 200)):
            async with weft.http_session.delete("/v1/requests/mine", headers=keys[name]) as answer:
                assert answer.status == status
        async with weft.http_session.delete("/v1/requests/mine") as answer:
            assert answer.status == 401
        async with await pending as answer:
            assert (answer.status, (await answer.json())["error_type"]) == (499, "cancelled")
        weft.gate.release_all()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, api_keys=str(tmp_path / "keys.json"), **HTTP_SETTINGS)
