"""Tests of effective-batching's dialect over HTTP on the simulated shard, with every batching mode."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.in_process_server import play

BATCHINGS = {"none": "nobatch", "static": "static", "continuous": "dynamic"}


async def inference(weft: Any, body: object, **more: Any) -> tuple[int, Any]:
    async with weft.http.post("/inference", data=json.dumps(body), **more) as answer:
        return answer.status, await answer.json(content_type=None)


async def stats(weft: Any) -> Any:
    async with weft.http.get("/stats") as answer:
        assert answer.status == 200
        return await answer.json()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def batching(story: Any, folder: Path, **given: Any) -> None:
    play(story, folder, http=True, dialect="batching", mean_output_length=3.0, **given)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("policy", BATCHINGS)
def test_exactly_as_many_tokens_are_made_as_were_asked_for(tmp_path: Path, policy: str, recompute: bool) -> None:
    async def story(weft: Any) -> None:
        answers = await asyncio.gather(*(
            inference(weft, {"prompt": f"Request {number}", "num_tokens": 5 * number}) for number in range(1, 9)))
        for number, (status, answer) in enumerate(answers, 1):
            assert (status, answer.keys()) == (200, {"completion"})
            assert answer["completion"].startswith(f"Request {number}")
        told = await stats(weft)
        assert told["total-tokens-handled"] == 5 * 36
        file = tmp_path / f"data/token_data_{BATCHINGS[policy]}.csv"
        rows = [line.split(",") for line in file.read_text().splitlines()]
        assert sorted(int(length) for length, _ in rows) == [5 * number for number in range(1, 9)]
        assert sum(float(seconds) for _, seconds in rows) == pytest.approx(told["total-elapsed-time"])
    batching(story, tmp_path, batching=policy, recompute=recompute)


def test_the_figures_are_those_of_the_study(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        assert await stats(weft) == {"latency-per-token": None, "throughput": None, "total-tokens-handled": 0,
                                     "total-elapsed-time": 0}
        for body in ({"prompt": "a", "num_tokens": 4}, {"prompt": "b", "num_tokens": "4"}):
            assert (await inference(weft, body))[0] == 200
        told = await stats(weft)
        assert told["throughput"] == pytest.approx(8 / told["total-elapsed-time"])
        assert told["latency-per-token"] == pytest.approx(told["total-elapsed-time"] / 8)
        assert (tmp_path / "data/token_data_dynamic.csv").read_text() == f"4,{told['total-elapsed-time'] / 2}\n"
    batching(story, tmp_path)


def test_every_answer_tells_its_own_seconds_and_stats_what_they_are_together(tmp_path: Path) -> None:
    """Requests that waited for one of the two handlers are included."""
    async def story(weft: Any) -> None:
        async def seconds(num_tokens: int) -> float:
            async with weft.http.post("/inference", json={"prompt": "a", "num_tokens": num_tokens}) as answer:
                return float(answer.headers["x-weft-seconds"])
        each = await asyncio.gather(*map(seconds, range(1, 9)))
        assert min(each) > 0
        assert sum(each) == pytest.approx((await stats(weft))["total-elapsed-time"], abs=1e-5)
    batching(story, tmp_path, max_handlers=2)


BAD: list[tuple[object, str]] = [
    ([], "body"), ({"num_tokens": 5}, "`prompt`"), ({"prompt": 5, "num_tokens": 5}, "`prompt`"),
    ({"prompt": "a"}, "`num_tokens`"), ({"prompt": "a", "num_tokens": "five"}, "`num_tokens` must be a number"),
    ({"prompt": "a", "num_tokens": [5]}, "`num_tokens` must be a number"),
    ({"prompt": "a", "num_tokens": 0}, "`num_tokens` must be at least 1, got 0"),
    ({"prompt": "a", "num_tokens": -1}, "`num_tokens` must be at least 1, got -1"),
    ({"prompt": "a", "num_tokens": 10**6}, "`prompt` (1 tokens) and `num_tokens` (1000000) must be at most")]


def test_what_ended_the_study_s_server_is_refused(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        for body, why in BAD:
            status, told = await inference(weft, body)
            assert (status, why in told["error"]) == (422, True), told
        assert (await inference(weft, {"prompt": "a", "num_tokens": 2}))[0] == 200
        assert (await stats(weft))["total-tokens-handled"] == 2
    batching(story, tmp_path)


def test_no_more_are_heard_than_there_are_handlers(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        asked = [asyncio.create_task(inference(weft, {"prompt": "a", "num_tokens": 40})) for _ in range(6)]
        most = 0
        while not all(task.done() for task in asked):
            most = max(most, weft.engine.num_unfinished)
            await asyncio.sleep(0)
        assert most == 2
        assert {(await task)[0] for task in asked} == {200}
    batching(story, tmp_path, max_handlers=2)


def test_where_nothing_can_be_written_figures_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(weft: Any) -> None:
        assert (await stats(weft))["total-tokens-handled"] == 0
        assert "cannot write data/token_data_dynamic.csv" in caplog.text
    (tmp_path / "data").write_text("no folder")
    batching(story, tmp_path)


def test_the_root_names_both_routes_and_others_are_there_as_well(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        async with weft.http.post("/") as answer:
            hint = await answer.text()
        assert "/inference" in hint
        assert "/stats" in hint
        async with weft.http.post("/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 1}}) as answer:
            assert answer.status == 200
    batching(story, tmp_path)


def test_without_the_dialect_there_is_no_such_route(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        async with weft.http.post("/inference", json={"prompt": "a", "num_tokens": 1}) as answer:
            assert answer.status == 404
    play(story, tmp_path, http=True)
