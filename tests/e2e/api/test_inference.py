"""Tests of effective-batching's dialect over HTTP on the simulated shard, with every batching mode."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.servers.in_process_server import play_scenario

FILE_SUFFIX_BY_BATCHING = {"none": "nobatch", "static": "static", "continuous": "dynamic"}


async def post_inference(weft: Any, body: object, **request_options: Any) -> tuple[int, Any]:
    async with weft.http_session.post("/inference", data=json.dumps(body), **request_options) as answer:
        return answer.status, await answer.json(content_type=None)


async def get_stats(weft: Any) -> Any:
    async with weft.http_session.get("/stats") as answer:
        assert answer.status == 200
        return await answer.json()


@pytest.fixture(autouse=True)
def temporary_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def play_batching_scenario(scenario: Any, folder: Path, **weft_options: Any) -> None:
    play_scenario(scenario, folder, http=True, dialect="batching", mean_output_length=3.0, **weft_options)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("policy", FILE_SUFFIX_BY_BATCHING)
def test_requested_number_of_tokens_is_generated_exactly(tmp_path: Path, policy: str, recompute: bool) -> None:
    async def scenario(weft: Any) -> None:
        answers = await asyncio.gather(*(
            post_inference(weft, {"prompt": f"Request {number}", "num_tokens": 5 * number}) for number in range(1, 9)))
        for number, (status, answer) in enumerate(answers, 1):
            assert (status, answer.keys()) == (200, {"completion"})
            assert answer["completion"].startswith(f"Request {number}")
        stats = await get_stats(weft)
        assert stats["total-tokens-handled"] == 5 * 36
        file = tmp_path / f"data/token_data_{FILE_SUFFIX_BY_BATCHING[policy]}.csv"
        rows = [line.split(",") for line in file.read_text().splitlines()]
        assert sorted(int(length) for length, _ in rows) == [5 * number for number in range(1, 9)]
        assert sum(float(seconds) for _, seconds in rows) == pytest.approx(stats["total-elapsed-time"])
    play_batching_scenario(scenario, tmp_path, batching=policy, recompute=recompute)


def test_stats_are_those_of_the_study(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        assert await get_stats(weft) == {"latency-per-token": None, "throughput": None, "total-tokens-handled": 0,
                                         "total-elapsed-time": 0}
        for body in ({"prompt": "a", "num_tokens": 4}, {"prompt": "b", "num_tokens": "4"}):
            assert (await post_inference(weft, body))[0] == 200
        stats = await get_stats(weft)
        assert stats["throughput"] == pytest.approx(8 / stats["total-elapsed-time"])
        assert stats["latency-per-token"] == pytest.approx(stats["total-elapsed-time"] / 8)
        assert (tmp_path / "data/token_data_dynamic.csv").read_text() == f"4,{stats['total-elapsed-time'] / 2}\n"
    play_batching_scenario(scenario, tmp_path)


def test_answers_report_their_seconds_and_stats_their_sum(tmp_path: Path) -> None:
    """Requests that waited for one of the two handlers are included."""
    async def scenario(weft: Any) -> None:
        async def get_answer_seconds(num_tokens: int) -> float:
            async with weft.http_session.post("/inference", json={"prompt": "a", "num_tokens": num_tokens}) as answer:
                return float(answer.headers["x-weft-seconds"])
        seconds = await asyncio.gather(*map(get_answer_seconds, range(1, 9)))
        assert min(seconds) > 0
        assert sum(seconds) == pytest.approx((await get_stats(weft))["total-elapsed-time"], abs=1e-5)
    play_batching_scenario(scenario, tmp_path, max_handlers=2)


INVALID_BODIES: list[tuple[object, str]] = [
    ([], "body"), ({"num_tokens": 5}, "`prompt`"), ({"prompt": 5, "num_tokens": 5}, "`prompt`"),
    ({"prompt": "a"}, "`num_tokens`"), ({"prompt": "a", "num_tokens": "five"}, "`num_tokens` must be a number"),
    ({"prompt": "a", "num_tokens": [5]}, "`num_tokens` must be a number"),
    ({"prompt": "a", "num_tokens": 0}, "`num_tokens` must be at least 1, got 0"),
    ({"prompt": "a", "num_tokens": -1}, "`num_tokens` must be at least 1, got -1"),
    ({"prompt": "a", "num_tokens": 10**6}, "`prompt` (1 tokens) and `num_tokens` (1000000) must be at most")]


def test_bodies_that_crashed_the_study_server_are_rejected(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        for body, message in INVALID_BODIES:
            status, answer = await post_inference(weft, body)
            assert (status, message in answer["error"]) == (422, True), answer
        assert (await post_inference(weft, {"prompt": "a", "num_tokens": 2}))[0] == 200
        assert (await get_stats(weft))["total-tokens-handled"] == 2
    play_batching_scenario(scenario, tmp_path)


def test_concurrent_requests_are_limited_to_max_handlers(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        request_tasks = [asyncio.create_task(post_inference(weft, {"prompt": "a", "num_tokens": 40})) for _ in range(6)]
        max_unfinished = 0
        while not all(task.done() for task in request_tasks):
            max_unfinished = max(max_unfinished, len(weft.engine._client_streams))
            await asyncio.sleep(0)
        assert max_unfinished == 2
        assert {(await task)[0] for task in request_tasks} == {200}
    play_batching_scenario(scenario, tmp_path, max_handlers=2)


def test_stats_work_when_the_data_folder_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(weft: Any) -> None:
        assert (await get_stats(weft))["total-tokens-handled"] == 0
        assert "cannot write data/token_data_dynamic.csv" in caplog.text
    (tmp_path / "data").write_text("no folder")
    play_batching_scenario(scenario, tmp_path)


def test_root_lists_both_routes_and_other_routes_still_work(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        async with weft.http_session.post("/") as answer:
            hint = await answer.text()
        assert "/inference" in hint
        assert "/stats" in hint
        body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
        async with weft.http_session.post("/generate", json=body) as answer:
            assert answer.status == 200
    play_batching_scenario(scenario, tmp_path)


def test_inference_route_needs_the_batching_dialect(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        async with weft.http_session.post("/inference", json={"prompt": "a", "num_tokens": 1}) as answer:
            assert answer.status == 404
    play_scenario(scenario, tmp_path, http=True)
