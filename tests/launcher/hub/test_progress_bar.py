"""Tests of the progress line of a download."""

import pytest

from launcher.hub.progress_bar import Meter, amount, clock


def meter(done: int, at: float, total: int = 1000_000_000) -> Meter:
    """Return the meter of a download that began at second 0 without any bytes."""
    made = Meter("downloading it", total, 0, 0.0)
    made.done = done
    made.line(at)
    return made


def test_a_line_tells_how_much_how_fast_and_how_long() -> None:
    assert meter(250_000_000, 5.0).line(5.0) == "downloading it: 25 %, 250.0 MB of 1.0 GB, 50.0 MB/s, 0:15 left"


def test_without_any_progress_there_is_no_rate_and_no_end() -> None:
    assert meter(0, 0.0).line(3.0) == "downloading it: 0 %, 0 B of 1.0 GB"


def test_what_was_there_before_counts_for_the_share_and_not_for_the_rate() -> None:
    resumed = Meter("it", 1000, 500, 0.0)
    resumed.done = 600
    assert resumed.line(10.0) == "it: 60 %, 600 B of 1.0 kB, 10 B/s, 0:40 left"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    made = meter(0, 0.0, total=10_000)
    for second in range(1, 31):
        made.done += 100 if second <= 20 else 10
        made.line(float(second))
    assert ", 10 B/s, " in made.line(30.0)


def test_at_the_end_there_is_nothing_left() -> None:
    assert meter(1000, 5.0, total=1000).line(5.0) == "downloading it: 100 %, 1.0 kB of 1.0 kB"


@pytest.mark.parametrize(("done", "bar"), [(0, "[          ]"), (500, "[=====     ]"), (1000, "[==========]")])
def test_a_bar_fills_the_room_that_the_figures_leave(done: int, bar: str) -> None:
    made = meter(done, 0.0, total=1000)
    figures = made.line(0.0).removeprefix("downloading it: ")
    assert made.bar(0.0, len(figures) + 13) == f"{bar} {figures}"


def test_a_narrow_terminal_has_no_bar_and_no_second_line() -> None:
    assert meter(0, 0.0).bar(0.0, 14) == "0 %, 0 B of 1."


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_340_000_000, "1.3 GB"), (2.5e12, "2.5 TB")])
def test_amounts_are_written_as_people_read_them(size: float, text: str) -> None:
    assert amount(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:00"), (59.7, "1:00"), (754, "12:34"), (3723, "1:02:03")])
def test_durations_are_written_as_clocks_do(seconds: float, text: str) -> None:
    assert clock(seconds) == text
