"""Tests of the progress display of a start, on a terminal and in a log."""

import asyncio
import io
from collections.abc import Callable, Iterable

import pytest

from launcher.supervisor import startup_display
from launcher.supervisor.startup_display import ProgressByPhase, StartupDisplay

GIB = 2**30


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def format_progress(*updates: tuple[str, str, int, int]) -> str:
    start = ProgressByPhase()
    for one in updates:
        start.update(*one)
    return str(start)


def test_phase_is_shown_in_percent_of_its_bytes() -> None:
    assert format_progress(("shard 0", "load", GIB, 4 * GIB)) == "weft: load 25 % of 4.00 GiB"


def test_progress_of_all_shards_is_shown_as_one() -> None:
    assert format_progress(("shard 0", "load", GIB, 4 * GIB), ("shard 1", "load", 3 * GIB, 4 * GIB)) == (
        "weft: load 50 % of 4.00 GiB")


def test_latest_reached_phase_is_shown() -> None:
    assert format_progress(("shard 0", "load", 4, 4), ("shard 0", "check", 0, 0),
                           ("shard 1", "load", 4, 4)) == "weft: check"
    assert format_progress(("shard 0", "check", 0, 0), ("router", "warm-up", 0, 0)) == "weft: warm-up"


def test_unknown_phase_is_shown() -> None:
    assert format_progress(("shard 0", "dream", 0, 0)) == "weft: dream"


class FakeTimerLoop:
    """Fake event loop whose timers fire only when a test calls them."""

    def __init__(self) -> None:
        self.pending_callbacks: list[Callable[[], object]] = []

    def call_later(self, _: float, callback: Callable[[], object]) -> "FakeTimerLoop":
        self.pending_callbacks.append(callback)
        return self

    def cancel(self) -> None:
        self.pending_callbacks.clear()


@pytest.fixture
def timer_loop(monkeypatch: pytest.MonkeyPatch) -> FakeTimerLoop:
    fake_loop = FakeTimerLoop()
    monkeypatch.setattr(startup_display.asyncio, "get_running_loop", lambda: fake_loop)
    return fake_loop


def run_display(stream: io.StringIO, timer_loop: FakeTimerLoop, steps: Iterable[str]) -> str:
    """Return the output of these steps and the end: `look` refreshes the display, another step reports a phase."""
    display = StartupDisplay(stream)
    for step in steps:
        (timer_loop.pending_callbacks.pop()() if step == "look"
         else display.update_progress("shard 0", step, GIB, 2 * GIB))
    display.stop()
    assert not timer_loop.pending_callbacks
    return stream.getvalue()


def test_short_start_writes_nothing_to_a_log(timer_loop: FakeTimerLoop) -> None:
    assert run_display(io.StringIO(), timer_loop, ["load", "check", "warm-up"]) == ""


def test_long_start_logs_each_phase_and_periodic_lines(timer_loop: FakeTimerLoop) -> None:
    text = run_display(io.StringIO(), timer_loop, ["load", "look", "load", "load", "look", "check", "warm-up", "look"])
    assert [line.split()[1] for line in text.splitlines()] == ["load", "load", "check", "warm-up", "warm-up"]


def test_start_is_shown_at_once_on_a_terminal_only(timer_loop: FakeTimerLoop) -> None:
    for stream, text in ((FakeTerminal(), "weft: start"), (io.StringIO(), "")):
        display = StartupDisplay(stream)
        display.show_start()
        if timer_loop.pending_callbacks:
            timer_loop.pending_callbacks.pop()()
        display.stop()
        assert stream.getvalue().strip() == text


def test_terminal_line_is_redrawn_and_cleared(timer_loop: FakeTimerLoop) -> None:
    text = run_display(FakeTerminal(), timer_loop, ["load", "look", "load", "look"])
    assert [line.rstrip() for line in text.split("\r")] == ["weft: load 50 % of 2.00 GiB"] * 2 + ["", ""]
    assert "\n" not in text


def test_timers_are_cancelled_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_display, "REDRAW_SECONDS", 0.0)

    async def scenario() -> None:
        display = StartupDisplay(FakeTerminal())
        shown = asyncio.Event()
        monkeypatch.setattr(display, "_show_progress", shown.set)
        display.update_progress("shard 0", "load", 1, 2)
        await shown.wait()
        display.stop()
        assert display._timer is None
    asyncio.run(scenario())
