"""Logs of a server's processes, as text and as JSON, written by a child process."""

import json
import logging
import subprocess
import sys
from datetime import datetime

import pytest

from shard.telemetry.logs import JsonLines, Logs, log_uncaught

PROGRAM = """
import logging, sys, warnings
from shard.telemetry.logs import Logs, start_logging
start_logging("shard 3", Logs({level!r}, as_json={as_json}))
log = logging.getLogger("shard.loom")
log.debug("a thread")
log.info("woven: %s", 5)
log.warning("two\\nlines")
warnings.warn("frays", UserWarning)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("torn")
raise KeyError("lost")
"""


def logged(*, level: str = "info", as_json: bool) -> list[str]:
    program = PROGRAM.format(level=level, as_json=as_json)
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr.splitlines()


@pytest.mark.slow
def test_every_line_is_an_object_also_those_of_warnings_and_of_an_error_that_ends_the_process() -> None:
    told = [json.loads(line) for line in logged(as_json=True)]
    assert [(item["level"], item["target"]) for item in told] == [
        ("INFO", "shard.loom"), ("WARN", "shard.loom"), ("WARN", "py.warnings"), ("ERROR", "shard.loom"),
        ("ERROR", "shard.telemetry.logs")]
    assert {item["process"] for item in told} == {"shard 3"}
    assert [item["message"] for item in told[:2]] == ["woven: 5", "two\nlines"]
    assert "frays" in told[2]["message"]
    assert told[3]["exception"].endswith("ZeroDivisionError: division by zero")
    assert told[4]["exception"].endswith("KeyError: 'lost'")


@pytest.mark.slow
def test_text_names_process_and_level() -> None:
    lines = logged(as_json=False)
    assert lines[0].endswith(" shard 3 INFO woven: 5")
    assert lines[-1] == "KeyError: 'lost'"


@pytest.mark.slow
@pytest.mark.parametrize(("level", "first"), [("debug", "a thread"), ("warning", "two\nlines"), ("error", "torn")])
def test_what_is_below_the_level_is_not_logged(level: str, first: str) -> None:
    told = [json.loads(line)["message"] for line in logged(level=level, as_json=True)]
    assert first == next(message for message in told if "frays" not in message)


def test_a_moment_is_told_in_universal_time_to_the_microsecond() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "b", None, None)
    told = json.loads(JsonLines("router").format(record))["timestamp"]
    assert told.endswith("Z")
    assert datetime.fromisoformat(told).timestamp() == pytest.approx(record.created, abs=1e-5)


def test_unless_told_otherwise_logs_are_text_from_info_on() -> None:
    assert Logs() == Logs("info", as_json=False)


def test_an_error_that_ends_the_process_is_logged_whole(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("torn")
    log_uncaught(ValueError, error, None)
    assert caplog.records[0].exc_info[1] is error
