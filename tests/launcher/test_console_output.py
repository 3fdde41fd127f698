"""Tests of the launcher's messages for people and for programs."""

import json
import logging
from contextlib import suppress

import pytest

from launcher.console_output import PLAIN_OUTPUT, ConsoleOutput, align_columns, format_bytes
from launcher.supervisor.startup_display import StartupDisplay


def read_log_entries(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    out, errors = capsys.readouterr()
    assert out == ""
    lines = [json.loads(line) for line in errors.splitlines()]
    return [(line["process"], line["level"], line["message"]) for line in lines]


def test_people_get_prefixed_lines(capsys: pytest.CaptureFixture[str]) -> None:
    PLAIN_OUTPUT.log("one")
    PLAIN_OUTPUT.warn("two")
    assert capsys.readouterr() == ("", "weft: one\nweft: two\n")


def test_full_disk_loses_the_output_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher ended, and the whole server with it, when it could not write that a shard was killed."""
    full = open("/dev/full", "w")  # noqa: SIM115 - closing it fails, too
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", full)
        patch.setattr("sys.stdout", full)
        PLAIN_OUTPUT.warn("one")
        ConsoleOutput(as_json=True).warn("two")
        PLAIN_OUTPUT.print_banner("three")
    with suppress(OSError):
        full.close()


def test_programs_get_a_json_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = ConsoleOutput(as_json=True)
    output.log("one % of it")
    output.warn("two")
    output.log("three", logging.ERROR)
    assert read_log_entries(capsys) == [("launcher", "INFO", "one % of it"), ("launcher", "WARN", "two"),
                                        ("launcher", "ERROR", "three")]


def test_banner_goes_to_stdout_or_into_the_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    PLAIN_OUTPUT.print_banner("weft serves\n  stop     Ctrl-C")
    assert capsys.readouterr() == ("weft serves\n  stop     Ctrl-C\n", "")
    ConsoleOutput(as_json=True).print_banner("weft serves\n  stop     Ctrl-C")
    assert read_log_entries(capsys) == [("launcher", "INFO", "weft serves\n  stop     Ctrl-C")]


def test_display_writes_plain_log_entries_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    screen = ConsoleOutput(as_json=True).make_progress_stream()
    screen.write("weft: load 5 % of 1.00 GiB\n")
    screen.flush()
    assert read_log_entries(capsys) == [("launcher", "INFO", "load 5 % of 1.00 GiB")]
    assert not screen.isatty()
    StartupDisplay(screen).stop()
    assert read_log_entries(capsys) == []


@pytest.mark.parametrize(("num_bytes", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_560_000, "2.6 MB"), (1_340_000_000, "1.3 GB"), (2.5e12, "2.5 TB")])
def test_sizes_have_decimal_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(("left_columns", "text"), [((0,), "a     b\ncc  ddd"), ((0, 1), "a   b\ncc  ddd")])
def test_columns_are_aligned(left_columns: tuple[int, ...], text: str) -> None:
    assert align_columns([["a", "b"], ["cc", "ddd"]], left_columns) == text
