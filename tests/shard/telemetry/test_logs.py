"""Logs of a server's processes, as text and as JSON, written by a child process."""

import io
import json
import logging
import os
import subprocess
import sys
from datetime import datetime

import pytest

from shard.telemetry.logs import DroppingStreamHandler, JsonLogFormatter, LogSettings, log_uncaught_exception

LOGGING_PROGRAM = """
import logging, sys, warnings
from shard.telemetry.logs import LogSettings, start_logging
start_logging("shard 3", LogSettings({level!r}, as_json={as_json}))
logger = logging.getLogger("shard.loom")
logger.debug("a thread")
for library in ("grpc._cython.cygrpc", "asyncio"):
    logging.getLogger(library).debug("an entrail")
logger.info("woven: %s", 5)
logger.warning("two\\nlines")
warnings.warn("frays", UserWarning)
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("torn")
raise KeyError("lost")
"""


def run_logging_program(*, level: str = "info", as_json: bool) -> list[str]:
    program = LOGGING_PROGRAM.format(level=level, as_json=as_json)
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    return result.stderr.splitlines()


@pytest.mark.slow
def test_every_json_line_is_an_object_even_for_warnings_and_fatal_errors() -> None:
    entries = [json.loads(line) for line in run_logging_program(as_json=True)]
    assert [(item["level"], item["target"]) for item in entries] == [
        ("INFO", "shard.loom"), ("WARN", "shard.loom"), ("WARN", "py.warnings"), ("ERROR", "shard.loom"),
        ("ERROR", "shard.telemetry.logs")]
    assert {item["process"] for item in entries} == {"shard 3"}
    assert [item["message"] for item in entries[:2]] == ["woven: 5", "two\nlines"]
    assert "frays" in entries[2]["message"]
    assert entries[3]["exception"].endswith("ZeroDivisionError: division by zero")
    assert entries[4]["exception"].endswith("KeyError: 'lost'")


@pytest.mark.slow
def test_text_lines_name_process_and_level() -> None:
    lines = run_logging_program(as_json=False)
    assert lines[0].endswith(" shard 3 INFO woven: 5")
    assert lines[-1] == "KeyError: 'lost'"


@pytest.mark.slow
@pytest.mark.parametrize(("level", "first"), [("debug", "a thread"), ("warning", "two\nlines"), ("error", "torn")])
def test_messages_below_the_level_are_not_logged(level: str, first: str) -> None:
    messages = [json.loads(line)["message"] for line in run_logging_program(level=level, as_json=True)]
    assert first == next(message for message in messages if "frays" not in message)
    assert "an entrail" not in messages


def test_timestamps_are_utc_with_microseconds() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "b", None, None)
    timestamp = json.loads(JsonLogFormatter("router").format(record))["timestamp"]
    assert timestamp.endswith("Z")
    assert datetime.fromisoformat(timestamp).timestamp() == pytest.approx(record.created, abs=1e-5)


def test_default_logs_are_text_from_info_on() -> None:
    assert LogSettings() == LogSettings("info", as_json=False)


def test_uncaught_exception_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("torn")
    log_uncaught_exception(ValueError, error, None)
    assert caplog.records[0].exc_info[1] is error


def test_log_that_nobody_reads_is_dropped_and_does_not_stop_the_process() -> None:
    """A server whose stderr was a full pipe stood still in a line of its log."""
    reading_fd, writing_fd = os.pipe()
    logger = logging.getLogger("loom")
    with os.fdopen(reading_fd) as reader, os.fdopen(writing_fd, "w") as writer:
        handler = DroppingStreamHandler(writer)
        for number in range(1000):
            handler.emit(logger.makeRecord("loom", logging.INFO, "", 0, f"{number} " + "x" * 200, (), None))
        text = os.read(reader.fileno(), 1_000_000).decode()
        assert 0 < text.count("\n") < 1000
        handler.emit(logger.makeRecord("loom", logging.INFO, "", 0, "again", (), None))
        dropped, again = os.read(reader.fileno(), 1_000_000).decode().splitlines()
    assert dropped == f"{1000 - text.count(chr(10))} lines of the log were dropped: nobody read them"
    assert again == "again"


def test_stream_that_is_no_file_gets_every_line() -> None:
    stream = io.StringIO()
    DroppingStreamHandler(stream).emit(logging.makeLogRecord({"msg": "woven"}))
    assert stream.getvalue() == "woven\n"
