"""Tests of streams on a real socket: the first token comes early, no token comes twice, and streams end cleanly."""

import asyncio
import json

import pytest
from support.in_process_server import body, events_of, play

PATHS = ["/generate", "/generate_stream"]


def test_the_first_token_is_on_the_wire_before_the_second_step_is_answered(tmp_path):
    async def story(weft):
        posting = asyncio.create_task(weft.http.post("/generate_stream", json=body("a loom", 4)))
        await weft.gate.arrival()
        weft.gate.let(1)
        async with await posting as answer:
            line = await answer.content.readline()
            assert json.loads(line.removeprefix(b"data:"))["token"]["text"] == weft.expected_text("a loom")[0]
            assert weft.gate.num_passed == 1
            weft.gate.open()
            await answer.read()
    play(story, tmp_path, http=True, gated=True)


@pytest.mark.parametrize("look_ahead", [1, 2])
def test_every_token_is_on_the_wire_before_the_next_step_but_one(tmp_path, look_ahead):
    async def story(weft):
        posting = asyncio.create_task(weft.http.post("/generate_stream", json=body("a loom", 6)))
        await weft.gate.arrival()
        weft.gate.let(1)
        async with await posting as answer:
            for index in range(6):
                assert json.loads((await answer.content.readline())[5:])["index"] == index + 1
                assert await answer.content.readline() == b"\n"
                assert weft.gate.num_passed == index + 1
                weft.gate.let(1)
    play(story, tmp_path, http=True, gated=True, look_ahead=look_ahead)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_both_routes_give_everyone_the_same_text(tmp_path, ranks, policy):
    async def story(weft):
        asked = [(f"{number} " * number, 5 + number) for number in range(1, 25)]
        streams = await asyncio.gather(*(weft.stream(*each) for each in asked))
        answers = await asyncio.gather(*(weft.generate(*each) for each in asked))
        for each, events, answer in zip(asked, streams, answers, strict=True):
            text = weft.expected_text(*each)
            assert "".join(event["token"]["text"] for event in events) == text
            assert [event["index"] for event in events] == list(range(1, len(text) + 1))
            assert events[-1]["generated_text"] == (await answer.json())["generated_text"] == text
        await weft.check_idle()
    play(story, tmp_path, http=True, ranks=ranks, prefill_policy=policy, max_batch_size=8)


@pytest.mark.parametrize("stop", ["ik s", "n "])
def test_text_ends_with_the_stop_string(tmp_path, stop):
    async def story(weft):
        whole = weft.expected_text("a loom", 60)
        *_, last = await weft.stream("a loom", 60, stop=[stop], details=True)
        assert last["generated_text"] == whole[:whole.index(stop) + len(stop)]
        assert last["details"]["finish_reason"] == "stop_sequence"
    play(story, tmp_path, http=True)


@pytest.mark.parametrize("faults", ["die@decode:3", "refuse@decode:5"])
def test_a_client_does_not_notice_that_the_shards_were_replaced(tmp_path, faults):
    async def story(weft):
        events = await weft.stream("a loom", 20)
        assert [event["index"] for event in events] == list(range(1, 21))
        assert events[-1]["generated_text"] == weft.expected_text("a loom", 20)
    play(story, tmp_path, http=True, faults=faults)


def test_a_failure_is_told_by_its_status_or_within_the_stream(tmp_path):
    async def story(weft):
        *before, last = await weft.stream("a loom", 20)
        assert "".join(event["token"]["text"] for event in before) == weft.expected_text("a loom", 20)[:len(before)]
        assert last["error_type"] == "generation"
        answer = await weft.generate("a loom", 20)
        assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert (await weft.generate("a loom", 20)).status == 200
    play(story, tmp_path, http=True, faults="fail_sequence@decode:3;fail_sequence@decode:9")


# -- overload and shutdown


def test_who_comes_when_the_house_is_full_is_told_to_come_again(tmp_path):
    async def story(weft):
        first = asyncio.create_task(weft.stream("a loom", 30))
        await weft.gate.arrival()
        refused = await weft.generate("another")
        assert (refused.status, (await refused.json())["error_type"]) == (429, "overloaded")
        assert int(refused.headers["Retry-After"]) >= 1
        (event,) = await weft.stream("another")
        assert event["error_type"] == "overloaded"
        weft.gate.open()
        assert (await first)[-1]["generated_text"] == weft.expected_text("a loom", 30)
        assert (await weft.generate("another")).status == 200
        await weft.check_idle()
    play(story, tmp_path, http=True, gated=True, max_concurrent_requests=1)


@pytest.mark.parametrize("path", PATHS)
def test_stopping_ends_every_answer_cleanly(tmp_path, path):
    async def story(weft):
        posting = [asyncio.create_task(weft.http.post(path, json=body(f"{number}", 30))) for number in range(3)]
        await weft.gate.arrival()
        weft.gate.let(4)
        await weft.shards.reach(5)
        await weft.engine.stop()
        for answer in await asyncio.gather(*posting):
            text = await answer.text()
            last = json.loads(text) if path == "/generate" else events_of(text)[-1]
            assert answer.status == (503 if path == "/generate" else 200)
            assert "shutting down" in last["error"]
        later = await weft.http.post("/generate", json=body("later"))
        assert later.status == 503
        assert (await weft.http.get("/health")).status == 503
    play(story, tmp_path, http=True, gated=True)


def test_a_mistake_of_ours_ends_every_answer_cleanly(tmp_path):
    async def story(weft):
        streaming = asyncio.create_task(weft.stream("a loom", 30))
        await weft.gate.arrival()

        def plan(now):
            raise ZeroDivisionError

        weft.core.plan = plan
        weft.gate.open()
        assert (await streaming)[-1]["error_type"] == "overloaded"
        assert (await weft.http.get("/health")).status == 503
        assert (await weft.generate("later")).status == 503
    play(story, tmp_path, http=True, gated=True)


def test_health_tells_whether_there_are_shards(tmp_path):
    async def story(weft):
        assert (await weft.http.get("/health")).status == 200
        meet, may_come_back = weft.engine._meet, asyncio.Event()

        async def meet_later(*expected):
            await may_come_back.wait()
            return await meet(*expected)

        weft.engine._meet = meet_later
        waiting, lost = asyncio.create_task(weft.stream("a loom", 20)), weft.watch("shards_lost")
        await lost.get()
        assert (await weft.http.get("/health")).status == 503
        may_come_back.set()
        await waiting
        assert (await weft.http.get("/health")).status == 200
    play(story, tmp_path, http=True, faults="die@decode:3")
