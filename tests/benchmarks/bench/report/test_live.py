"""Tests of the progress display of a run."""

import asyncio
import sys
from io import StringIO

import pytest
from support.fake_bench_results import answer, refusal, whole

from benchmarks.bench.report.live import LATEST, Progress, showing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def seen(out: StringIO, looks: int = 2) -> str:
    """Return the output of a run whose display is refreshed `looks` times."""
    async def story() -> None:
        left, over = iter(range(looks)), asyncio.Event()

        async def rest(_: float) -> None:
            if next(left, None) is None:
                over.set()
                await asyncio.Event().wait()

        progress = Progress()
        async with showing(progress, out, rest):
            progress.sent(answer())
            await over.wait()
            progress.ended(answer())
    asyncio.run(story())
    return out.getvalue()


def test_requests_are_in_flight_until_they_end() -> None:
    progress = Progress()
    for record in (records := [answer(), refusal(), answer(), answer()]):
        progress.sent(record)
    for record in records[:3]:
        progress.ended(record)
    made = progress.figures()
    assert [made[name] for name in ("sent", "answered", "failed", "in flight")] == ["4", "2", "1", "1"]


def test_tokens_a_second_are_those_of_the_last_seconds() -> None:
    progress, rates = Progress(clock := Clock()), []
    for tokens in (10, 10, 10, 10, 0, 0, 0):
        for _ in range(tokens):
            progress.token(answer())
        clock.now += 1.0
        rates.append(progress.figures()["tokens/s"])
    assert rates == ["10", "10", "10", "10", "7", "3", "0"]


def test_looking_twice_at_once_harms_nothing() -> None:
    progress = Progress(Clock())
    assert progress.figures() == progress.figures()


def test_answers_bring_the_tokens_that_no_event_told() -> None:
    progress = Progress(clock := Clock())
    progress.token(streamed := answer(tokens=1))
    streamed.num_tokens = 3
    progress.ended(streamed)
    progress.ended(whole(tokens=5))
    assert progress.num_tokens == 8
    clock.now += 2.0
    assert progress.figures()["tokens/s"] == "4"


def test_first_tokens_are_told_once_there_are_some() -> None:
    progress = Progress()
    assert "first token p50" not in progress.figures()
    for first in (0.01, 0.02, 0.03):
        progress.ended(answer(first=first))
    progress.ended(whole())
    assert (progress.figures()["first token p50"], progress.figures()["first token p99"]) == ("20.0 ms", "30.0 ms")


def test_only_the_latest_first_tokens_count() -> None:
    progress = Progress()
    for first in [1.0] * 100 + [0.1] * LATEST:
        progress.ended(answer(first=first, tokens=1))
    assert progress.figures()["first token p99"] == "100 ms"


def test_where_nothing_can_be_drawn_anew_there_is_a_line_each_time() -> None:
    lines = seen(StringIO()).splitlines()
    assert ["answered 0" in line for line in lines] == [True, True, False]
    assert "sent 1, answered 1, failed 0, in flight 0" in lines[-1]


def test_on_a_terminal_there_is_one_table() -> None:
    shown = seen(Terminal())
    assert "answered" in shown
    assert "answered 1" not in shown
    assert "\x1b[2K" in shown  # erases the line drawn before


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert "answered 1" in seen(Terminal())


def test_it_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with showing(Progress()):
            pass
    asyncio.run(story())
    assert capsys.readouterr().err.count("elapsed") == 1


def test_a_run_that_fails_fails_and_the_last_is_still_shown() -> None:
    async def story() -> None:
        async with showing(Progress(), out):
            raise ValueError("no such server")
    out = StringIO()
    with pytest.raises(ValueError, match="no such server"):
        asyncio.run(story())
    assert out.getvalue().count("elapsed") == 1
