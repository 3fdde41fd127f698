"""Tests of the progress display of a start, on a terminal and in a log."""

import asyncio
import io
from collections.abc import Callable, Iterable

import pytest

from launcher.supervisor import startup_display
from launcher.supervisor.startup_display import Display, Start

GIB = 2**30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(*news: tuple[str, str, int, int]) -> str:
    start = Start()
    for one in news:
        start.hear(*one)
    return str(start)


def test_a_phase_is_shown_in_percent_of_its_bytes() -> None:
    assert told(("shard 0", "load", GIB, 4 * GIB)) == "weft: load 25 % of 4.00 GiB"


def test_shards_that_read_the_same_files_are_shown_as_one() -> None:
    assert told(("shard 0", "load", GIB, 4 * GIB), ("shard 1", "load", 3 * GIB, 4 * GIB)) == (
        "weft: load 50 % of 4.00 GiB")


def test_the_last_phase_that_was_reached_counts() -> None:
    assert told(("shard 0", "load", 4, 4), ("shard 0", "check", 0, 0), ("shard 1", "load", 4, 4)) == "weft: check"
    assert told(("shard 0", "check", 0, 0), ("router", "warm-up", 0, 0)) == "weft: warm-up"


def test_a_phase_that_we_do_not_know_is_shown_as_well() -> None:
    assert told(("shard 0", "dream", 0, 0)) == "weft: dream"


class Looks:
    """Fake event loop whose timers fire only when a test calls them."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_later(self, _: float, look: Callable[[], object]) -> "Looks":
        self.due.append(look)
        return self

    def cancel(self) -> None:
        self.due.clear()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(startup_display.asyncio, "get_running_loop", lambda: looks)
    return looks


def shown(out: io.StringIO, looks: Looks, steps: Iterable[str]) -> str:
    """Return the output of these steps and the end: `look` refreshes the display, another step reports a phase."""
    display = Display(out)
    for step in steps:
        looks.due.pop()() if step == "look" else display.hear("shard 0", step, GIB, 2 * GIB)
    display.end()
    assert not looks.due
    return out.getvalue()


def test_a_short_start_leaves_no_trace_in_a_log(looks: Looks) -> None:
    assert shown(io.StringIO(), looks, ["load", "check", "warm-up"]) == ""


def test_a_long_one_has_a_line_now_and_then_and_one_for_every_phase(looks: Looks) -> None:
    text = shown(io.StringIO(), looks, ["load", "look", "load", "load", "look", "check", "warm-up", "look"])
    assert [line.split()[1] for line in text.splitlines()] == ["load", "load", "check", "warm-up", "warm-up"]


def test_on_a_terminal_one_line_is_drawn_again_and_cleared(looks: Looks) -> None:
    text = shown(Terminal(), looks, ["load", "look", "load", "look"])
    assert [line.rstrip() for line in text.split("\r")] == ["weft: load 50 % of 2.00 GiB"] * 2 + ["", ""]
    assert "\n" not in text


def test_timers_of_a_real_loop_are_cancelled_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_display, "REDRAW", 0.0)

    async def story() -> None:
        display = Display(Terminal())
        drawn = asyncio.Event()
        monkeypatch.setattr(display, "_say", drawn.set)
        display.hear("shard 0", "load", 1, 2)
        await drawn.wait()
        display.end()
        assert display._timer is None
    asyncio.run(story())
