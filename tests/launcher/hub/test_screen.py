"""Tests of the display of a download, on a terminal and in a log."""

from io import StringIO

import pytest

from launcher.hub.progress_bar import Meter
from launcher.hub.screen import CLEAR, Screen


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Shown:
    """A screen, its clock, and a download that is half done."""

    def __init__(self, target: StringIO, *, quiet: bool = False) -> None:
        self.now, self.target = 0.0, target
        self.screen = Screen(target, lambda: self.now, quiet=quiet)
        self.meter = Meter("it", 1000, 500, 0.0)

    def show(self, *seconds: float) -> str:
        for self.now in seconds:
            self.screen.show(self.meter)
        return self.target.getvalue()


FIGURES = "50 %, 500 B of 1.0 kB"
LINE = f"it: {FIGURES}"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")


def test_a_terminal_has_one_line_that_is_drawn_again() -> None:
    assert Shown(Terminal()).show(0.0, 0.2) == f"{CLEAR}{FIGURES}" * 2


def test_elsewhere_there_is_a_line_every_ten_seconds() -> None:
    assert Shown(StringIO()).show(0.0, 9.9, 10.0, 19.9, 20.0) == f"weft: {LINE}\n" * 2


def test_what_is_said_stands_where_the_bar_was() -> None:
    (shown := Shown(Terminal())).show(0.0)
    shown.screen.say("the connection was lost")
    shown.screen.clear()
    assert shown.target.getvalue() == f"{CLEAR}{FIGURES}{CLEAR}weft: the connection was lost\n"


def test_what_is_said_twice_in_a_row_is_shown_once() -> None:
    shown = Shown(StringIO())
    for text in ("one", "one", "two", "one"):
        shown.screen.say(text)
    assert shown.target.getvalue() == "weft: one\nweft: two\nweft: one\n"


@pytest.mark.parametrize("target", [Terminal, StringIO])
def test_the_beginning_names_what_has_begun(target: type[StringIO]) -> None:
    shown = Shown(target())
    shown.screen.begin(shown.meter)
    assert shown.target.getvalue() == f"weft: {LINE}\n"


@pytest.mark.parametrize("target", [Terminal, StringIO])
def test_who_wants_no_progress_is_told_the_rest(target: type[StringIO]) -> None:
    shown = Shown(target(), quiet=True)
    shown.screen.begin(shown.meter)
    shown.show(0.0, 20.0)
    shown.screen.say("done")
    assert shown.target.getvalue() == "weft: done\n"
