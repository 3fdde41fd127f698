"""Tests of the progress display of a run."""

import asyncio
from io import StringIO

import pytest
from support.fake_bench_results import make_rejected_record, make_streamed_record, make_unstreamed_record

from benchmarks.bench.report.progress import MAX_KEPT_LATENCIES, BenchProgress, show_progress


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeTerminal(StringIO):
    def isatty(self) -> bool:
        return True


def run_display(stream: StringIO, num_refreshes: int = 2) -> str:
    """Return the output of a run whose display is refreshed `num_refreshes` times."""
    async def scenario() -> None:
        refreshes, is_over = iter(range(num_refreshes)), asyncio.Event()

        async def wait_for_refresh(_: float) -> None:
            if next(refreshes, None) is None:
                is_over.set()
                await asyncio.Event().wait()

        progress = BenchProgress()
        async with show_progress(progress, stream, wait_for_refresh):
            progress.on_request_sent(make_streamed_record())
            await is_over.wait()
            progress.on_request_ended(make_streamed_record())
    asyncio.run(scenario())
    return stream.getvalue()


def test_requests_are_in_flight_until_they_end() -> None:
    progress = BenchProgress()
    for record in (records := [make_streamed_record(), make_rejected_record(), make_streamed_record(),
                               make_streamed_record()]):
        progress.on_request_sent(record)
    for record in records[:3]:
        progress.on_request_ended(record)
    metrics = progress.format_metrics()
    assert [metrics[name] for name in ("sent", "answered", "failed", "in flight")] == ["4", "2", "1", "1"]


def test_token_rate_is_that_of_the_last_seconds() -> None:
    progress, rates = BenchProgress(clock := FakeClock()), []
    for tokens in (10, 10, 10, 10, 0, 0, 0):
        for _ in range(tokens):
            progress.on_token(make_streamed_record())
        clock.now += 1.0
        rates.append(progress.format_metrics()["tokens/s"])
    assert rates == ["10", "10", "10", "10", "7", "3", "0"]


def test_two_reads_at_once_give_the_same_figures() -> None:
    progress = BenchProgress(FakeClock())
    assert progress.format_metrics() == progress.format_metrics()


def test_ended_answers_add_tokens_without_events() -> None:
    progress = BenchProgress(clock := FakeClock())
    progress.on_token(streamed := make_streamed_record(num_tokens=1))
    streamed.num_tokens = 3
    progress.on_request_ended(streamed)
    progress.on_request_ended(make_unstreamed_record(num_tokens=5))
    assert progress.num_tokens == 8
    clock.now += 2.0
    assert progress.format_metrics()["tokens/s"] == "4"


def test_first_token_percentiles_appear_once_there_are_some() -> None:
    progress = BenchProgress()
    assert "first token p50" not in progress.format_metrics()
    for first in (0.01, 0.02, 0.03):
        progress.on_request_ended(make_streamed_record(first_token_seconds=first))
    progress.on_request_ended(make_unstreamed_record())
    assert (progress.format_metrics()["first token p50"],
            progress.format_metrics()["first token p99"]) == ("20.0 ms", "30.0 ms")


def test_only_the_latest_first_tokens_count() -> None:
    progress = BenchProgress()
    for first in [1.0] * 100 + [0.1] * MAX_KEPT_LATENCIES:
        progress.on_request_ended(make_streamed_record(first_token_seconds=first, num_tokens=1))
    assert progress.format_metrics()["first token p99"] == "100 ms"


def test_without_a_terminal_every_refresh_is_a_line() -> None:
    lines = run_display(StringIO()).splitlines()
    assert ["answered 0" in line for line in lines] == [True, True, False]
    assert "sent 1, answered 1, failed 0, in flight 0" in lines[-1]


def test_terminal_shows_one_redrawn_table() -> None:
    output = run_display(FakeTerminal())
    assert "answered" in output
    assert "answered 1" not in output
    assert "\x1b[2K" in output  # erases the line drawn before


def test_progress_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with show_progress(BenchProgress()):
            pass
    asyncio.run(scenario())
    assert capsys.readouterr().err.count("elapsed") == 1


def test_failed_run_shows_its_last_figures() -> None:
    async def scenario() -> None:
        async with show_progress(BenchProgress(), out):
            raise ValueError("no such server")
    out = StringIO()
    with pytest.raises(ValueError, match="no such server"):
        asyncio.run(scenario())
    assert out.getvalue().count("elapsed") == 1
