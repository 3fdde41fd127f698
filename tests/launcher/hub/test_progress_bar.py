"""Tests of the progress line of a download."""

import pytest

from launcher.hub.progress_bar import DownloadProgress, format_duration


def make_progress(done_bytes: int, now: float, total_bytes: int = 1000_000_000) -> DownloadProgress:
    """Return the progress of a download that began at second 0 without any bytes."""
    progress = DownloadProgress("downloading it", total_bytes, 0, 0.0)
    progress.done_bytes = done_bytes
    progress.format_line(now)
    return progress


def test_line_shows_share_rate_and_remaining_time() -> None:
    assert (make_progress(250_000_000, 5.0).format_line(5.0)
            == "downloading it: 25 %, 250.0 MB of 1.0 GB, 50.0 MB/s, 0:15 left")


def test_line_without_progress_has_no_rate_or_remaining_time() -> None:
    assert make_progress(0, 0.0).format_line(3.0) == "downloading it: 0 %, 0 B of 1.0 GB"


def test_resumed_bytes_count_for_the_share_but_not_the_rate() -> None:
    resumed = DownloadProgress("it", 1000, 500, 0.0)
    resumed.done_bytes = 600
    assert resumed.format_line(10.0) == "it: 60 %, 600 B of 1.0 kB, 10 B/s, 0:40 left"


def test_rate_is_that_of_the_last_seconds() -> None:
    progress = make_progress(0, 0.0, total_bytes=10_000)
    for second in range(1, 31):
        progress.done_bytes += 100 if second <= 20 else 10
        progress.format_line(float(second))
    assert ", 10 B/s, " in progress.format_line(30.0)


def test_finished_line_has_no_remaining_time() -> None:
    assert make_progress(1000, 5.0, total_bytes=1000).format_line(5.0) == "downloading it: 100 %, 1.0 kB of 1.0 kB"


@pytest.mark.parametrize(("done_bytes", "bar"), [(0, "[          ]"), (500, "[=====     ]"), (1000, "[==========]")])
def test_bar_fills_the_remaining_width(done_bytes: int, bar: str) -> None:
    progress = make_progress(done_bytes, 0.0, total_bytes=1000)
    figures = progress.format_line(0.0).removeprefix("downloading it: ")
    assert progress.format_bar(0.0, len(figures) + 13) == f"{bar} {figures}"


def test_narrow_terminal_has_no_bar_or_second_line() -> None:
    assert make_progress(0, 0.0).format_bar(0.0, 14) == "0 %, 0 B of 1."


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:00"), (59.7, "1:00"), (754, "12:34"), (3723, "1:02:03")])
def test_durations_are_written_like_clocks(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
