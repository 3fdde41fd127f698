"""Tests of the launcher's messages for people and for programs."""

import json
import logging

import pytest

from launcher.output import PLAIN, Voice
from launcher.supervisor.startup_display import Display


def told(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    out, errors = capsys.readouterr()
    assert out == ""
    lines = [json.loads(line) for line in errors.splitlines()]
    return [(line["process"], line["level"], line["message"]) for line in lines]


def test_people_read_lines_that_begin_with_our_name(capsys: pytest.CaptureFixture[str]) -> None:
    PLAIN.say("one")
    PLAIN.warn("two")
    assert capsys.readouterr() == ("", "weft: one\nweft: two\n")


def test_programs_read_an_object_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    voice = Voice(as_json=True)
    voice.say("one % of it")
    voice.warn("two")
    voice.say("three", logging.ERROR)
    assert told(capsys) == [("launcher", "INFO", "one % of it"), ("launcher", "WARN", "two"),
                            ("launcher", "ERROR", "three")]


def test_the_banner_is_for_people_on_stdout_and_for_programs_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    PLAIN.greet("weft serves\n  stop     Ctrl-C")
    assert capsys.readouterr() == ("weft serves\n  stop     Ctrl-C\n", "")
    Voice(as_json=True).greet("weft serves\n  stop     Ctrl-C")
    assert told(capsys) == [("launcher", "INFO", "weft serves\n  stop     Ctrl-C")]


def test_what_draws_lines_itself_does_not_draw_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Voice(as_json=True).screen()
    screen.write("weft: load 5 % of 1.00 GiB\n")
    screen.flush()
    assert told(capsys) == [("launcher", "INFO", "load 5 % of 1.00 GiB")]
    assert not screen.isatty()
    Display(screen).end()
    assert told(capsys) == []
