"""Tests of the display of a download, on a terminal and in a log."""

from io import StringIO

import pytest

from launcher.hub.download_display import CLEAR_LINE, DownloadDisplay
from launcher.hub.progress_bar import DownloadProgress


class FakeTerminal(StringIO):
    def isatty(self) -> bool:
        return True


class DisplayHarness:
    """A screen, its clock, and a download that is half done."""

    def __init__(self, stream: StringIO, *, hides_progress: bool = False) -> None:
        self.now, self.stream = 0.0, stream
        self.display = DownloadDisplay(stream, lambda: self.now, hides_progress=hides_progress)
        self.progress = DownloadProgress("it", 1000, 500, 0.0)

    def show_at(self, *seconds: float) -> str:
        for self.now in seconds:
            self.display.show_progress(self.progress)
        return self.stream.getvalue()


PROGRESS_TEXT = "50 %, 500 B of 1.0 kB"
PROGRESS_LINE = f"it: {PROGRESS_TEXT}"


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")


def test_terminal_redraws_one_line() -> None:
    assert DisplayHarness(FakeTerminal()).show_at(0.0, 0.2) == f"{CLEAR_LINE}{PROGRESS_TEXT}" * 2


def test_log_gets_a_line_every_ten_seconds() -> None:
    assert DisplayHarness(StringIO()).show_at(0.0, 9.9, 10.0, 19.9, 20.0) == f"weft: {PROGRESS_LINE}\n" * 2


def test_message_replaces_the_bar() -> None:
    (harness := DisplayHarness(FakeTerminal())).show_at(0.0)
    harness.display.print_message("the connection was lost")
    harness.display.clear_bar()
    assert harness.stream.getvalue() == f"{CLEAR_LINE}{PROGRESS_TEXT}{CLEAR_LINE}weft: the connection was lost\n"


def test_repeated_message_is_shown_once() -> None:
    harness = DisplayHarness(StringIO())
    for text in ("one", "one", "two", "one"):
        harness.display.print_message(text)
    assert harness.stream.getvalue() == "weft: one\nweft: two\nweft: one\n"


@pytest.mark.parametrize("target", [FakeTerminal, StringIO])
def test_start_names_the_download(target: type[StringIO]) -> None:
    harness = DisplayHarness(target())
    harness.display.print_start(harness.progress)
    assert harness.stream.getvalue() == f"weft: {PROGRESS_LINE}\n"


@pytest.mark.parametrize("target", [FakeTerminal, StringIO])
def test_quiet_display_shows_messages_but_no_progress(target: type[StringIO]) -> None:
    harness = DisplayHarness(target(), hides_progress=True)
    harness.display.print_start(harness.progress)
    harness.show_at(0.0, 20.0)
    harness.display.print_message("done")
    assert harness.stream.getvalue() == "weft: done\n"
