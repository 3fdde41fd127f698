"""Tests of streams on a real socket: the first token comes early, no token comes twice, and streams end cleanly."""

import asyncio
import json

import pytest
from support.scheduling.method_overrides import override_methods
from support.servers.in_process_server import make_generate_body, parse_stream_events, play_scenario

GENERATE_PATHS = ["/generate", "/generate_stream"]


def test_first_token_is_sent_before_the_second_step(tmp_path):
    async def scenario(weft):
        posting = asyncio.create_task(weft.http_session.post("/generate_stream", json=make_generate_body("a loom", 4)))
        await weft.gate.wait_for_step()
        weft.gate.release_steps(1)
        async with await posting as answer:
            line = await answer.content.readline()
            assert json.loads(line.removeprefix(b"data:"))["token"]["text"] == weft.compute_expected_text("a loom")[0]
            assert weft.gate.num_passed == 1
            weft.gate.release_all()
            await answer.read()
    play_scenario(scenario, tmp_path, http=True, gated=True)


@pytest.mark.parametrize("look_ahead", [1, 2])
def test_every_token_is_sent_before_the_step_after_next(tmp_path, look_ahead):
    async def scenario(weft):
        posting = asyncio.create_task(weft.http_session.post("/generate_stream", json=make_generate_body("a loom", 6)))
        await weft.gate.wait_for_step()
        weft.gate.release_steps(1)
        async with await posting as answer:
            for index in range(6):
                assert json.loads((await answer.content.readline())[5:])["index"] == index + 1
                assert await answer.content.readline() == b"\n"
                assert weft.gate.num_passed == index + 1
                weft.gate.release_steps(1)
    play_scenario(scenario, tmp_path, http=True, gated=True, look_ahead=look_ahead)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_both_routes_give_all_clients_the_same_text(tmp_path, ranks, policy):
    async def scenario(weft):
        requests = [(f"{number} " * number, 5 + number) for number in range(1, 25)]
        streams = await asyncio.gather(*(weft.generate_stream(*request) for request in requests))
        answers = await asyncio.gather(*(weft.generate(*request) for request in requests))
        for request, events, answer in zip(requests, streams, answers, strict=True):
            text = weft.compute_expected_text(*request)
            assert "".join(event["token"]["text"] for event in events) == text
            assert [event["index"] for event in events] == list(range(1, len(text) + 1))
            assert events[-1]["generated_text"] == (await answer.json())["generated_text"] == text
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, ranks=ranks, prefill_policy=policy, max_batch_size=8)


@pytest.mark.parametrize("stop", ["ik s", "n "])
def test_text_ends_with_the_stop_string(tmp_path, stop):
    async def scenario(weft):
        whole = weft.compute_expected_text("a loom", 60)
        *_, last = await weft.generate_stream("a loom", 60, stop=[stop], details=True)
        assert last["generated_text"] == whole[:whole.index(stop) + len(stop)]
        assert last["details"]["finish_reason"] == "stop_sequence"
    play_scenario(scenario, tmp_path, http=True)


@pytest.mark.parametrize("faults", ["die@decode:3", "refuse@decode:5"])
def test_streams_continue_when_shards_are_replaced(tmp_path, faults):
    async def scenario(weft):
        events = await weft.generate_stream("a loom", 20)
        assert [event["index"] for event in events] == list(range(1, 21))
        assert events[-1]["generated_text"] == weft.compute_expected_text("a loom", 20)
    play_scenario(scenario, tmp_path, http=True, faults=faults)


def test_failures_are_reported_by_status_or_within_the_stream(tmp_path):
    async def scenario(weft):
        *before, last = await weft.generate_stream("a loom", 20)
        expected_text = weft.compute_expected_text("a loom", 20)
        assert "".join(event["token"]["text"] for event in before) == expected_text[:len(before)]
        assert last["error_type"] == "generation"
        answer = await weft.generate("a loom", 20)
        assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert (await weft.generate("a loom", 20)).status == 200
    play_scenario(scenario, tmp_path, http=True, faults="fail_sequence@decode:3;fail_sequence@decode:9")


# -- overload and shutdown


def test_full_server_answers_429_with_retry_after(tmp_path):
    async def scenario(weft):
        first = asyncio.create_task(weft.generate_stream("a loom", 30))
        await weft.gate.wait_for_step()
        refused = await weft.generate("another")
        assert (refused.status, (await refused.json())["error_type"]) == (429, "overloaded")
        assert int(refused.headers["Retry-After"]) >= 1
        (event,) = await weft.generate_stream("another")
        assert event["error_type"] == "overloaded"
        weft.gate.release_all()
        assert (await first)[-1]["generated_text"] == weft.compute_expected_text("a loom", 30)
        assert (await weft.generate("another")).status == 200
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, gated=True, max_concurrent_requests=1)


@pytest.mark.parametrize("path", GENERATE_PATHS)
def test_stopping_the_server_ends_every_answer_with_an_error(tmp_path, path):
    async def scenario(weft):
        posting = [asyncio.create_task(weft.http_session.post(path, json=make_generate_body(f"{number}", 30)))
                   for number in range(3)]
        await weft.gate.wait_for_step()
        weft.gate.release_steps(4)
        await weft.shards.wait_for_num_steps(5)
        await weft.engine.stop()
        for answer in await asyncio.gather(*posting):
            text = await answer.text()
            last = json.loads(text) if path == "/generate" else parse_stream_events(text)[-1]
            assert answer.status == (503 if path == "/generate" else 200)
            assert "shutting down" in last["error"]
        later = await weft.http_session.post("/generate", json=make_generate_body("later"))
        assert later.status == 503
        assert (await weft.http_session.get("/health")).status == 503
    play_scenario(scenario, tmp_path, http=True, gated=True)


def test_internal_error_ends_every_answer_with_an_error(tmp_path):
    async def scenario(weft):
        streaming = asyncio.create_task(weft.generate_stream("a loom", 30))
        await weft.gate.wait_for_step()

        def plan(now):
            raise ZeroDivisionError

        override_methods(weft.scheduler, plan=plan)
        weft.gate.release_all()
        assert (await streaming)[-1]["error_type"] == "overloaded"
        assert (await weft.http_session.get("/health")).status == 503
        assert (await weft.generate("later")).status == 503
    play_scenario(scenario, tmp_path, http=True, gated=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_requests_fail_at_once_if_lost_shards_are_not_to_be_waited_for(tmp_path, ranks):
    async def scenario(weft):
        connect_shards = weft.engine._connect_shards
        may_reconnect, is_reconnected = asyncio.Event(), asyncio.Event()

        async def connect_shards_later(*expected):
            await may_reconnect.wait()
            if await connect_shards(*expected):
                is_reconnected.set()
            return is_reconnected.is_set()

        override_methods(weft.engine, _connect_shards=connect_shards_later)
        answers = await asyncio.gather(*(weft.generate_stream(f"{number}", 20) for number in range(3)),
                                       weft.generate("whole", 20))
        for *tokens, last in answers[:3]:
            assert [event["index"] for event in tokens] == list(range(1, len(tokens) + 1))
            assert "--on-shard-loss fail" in last["error"]
        later = await weft.generate("later")
        for answer in (answers[3], later):
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        may_reconnect.set()
        await is_reconnected.wait()
        assert (await weft.generate("later")).status == 200
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, faults="die@decode:5" if ranks == 1 else ("", "die@decode:5"),
                  ranks=ranks, on_shard_loss="fail")


def test_requests_fail_if_the_shards_die_while_they_recover(tmp_path):
    async def scenario(weft):
        connect_shards, is_reconnected = weft.engine._connect_shards, asyncio.Event()

        async def connect_and_notify(*expected):
            if await connect_shards(*expected):
                is_reconnected.set()
            return is_reconnected.is_set()

        override_methods(weft.engine, _connect_shards=connect_and_notify)
        answers = await asyncio.gather(*(weft.generate_stream(f"{number}", 20) for number in range(3)))
        assert all("--on-shard-loss fail" in last["error"] for *_, last in answers)
        await is_reconnected.wait()
    play_scenario(scenario, tmp_path, http=True, faults="step_error@decode:3;die@reset:2", on_shard_loss="fail")


def test_health_reports_whether_shards_are_available(tmp_path):
    async def scenario(weft):
        assert (await weft.http_session.get("/health")).status == 200
        connect_shards, may_reconnect = weft.engine._connect_shards, asyncio.Event()

        async def connect_shards_later(*expected):
            await may_reconnect.wait()
            return await connect_shards(*expected)

        weft.engine._connect_shards = connect_shards_later
        waiting = asyncio.create_task(weft.generate_stream("a loom", 20))
        lost = weft.watch_scheduler_calls("on_shards_lost")
        await lost.get()
        assert (await weft.http_session.get("/health")).status == 503
        may_reconnect.set()
        await waiting
        assert (await weft.http_session.get("/health")).status == 200
    play_scenario(scenario, tmp_path, http=True, faults="die@decode:3")
