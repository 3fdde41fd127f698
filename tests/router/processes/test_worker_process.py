"""Tests of router/processes/worker_process.py: processor time, deaths, and limits inside the process."""

import json
import socket
import sys
from contextlib import closing

import pytest

from router.processes.worker_process import (
    STOP_REASON,
    RestartingWorker,
    WorkerCpuTimeExceeded,
    WorkerDied,
    WorkerProcess,
    WorkerTaskWording,
    answer_requests,
)

TASK = WorkerTaskWording("weave", "woven", "cloths")
SCRIPT = """
import json, os, socket
parent = socket.socket(fileno=0)
for line in parent.makefile("rb"):
    request = json.loads(line)
    while "burn" in request:
        pass
    if "die" in request:
        os._exit(1)
    if "fail" in request:
        raise KeyError("what was sent")
    if "exhaust" in request:
        raise MemoryError
    parent.sendall(json.dumps({"echo": request}).encode() + b"\\n")
"""
COMMAND = (sys.executable, "-P", "-c", SCRIPT)


@pytest.mark.slow
def test_words_of_the_task_are_those_of_errors() -> None:
    with closing(WorkerProcess(TASK, COMMAND)) as process:
        assert process.send_request({"a": "é" * 100_000}, 9, 9) == {"echo": {"a": "é" * 100_000}}
        with pytest.raises(WorkerCpuTimeExceeded, match=r"it takes more than 0.1 seconds to weave"):
            process.send_request({"burn": 1}, 0.1, 60)
    with closing(WorkerProcess(TASK, COMMAND)) as process, pytest.raises(WorkerDied, match="cannot be woven at all"):
        process.send_request({"die": 1}, 9, 9)


@pytest.mark.slow
def test_death_is_a_verdict_only_after_a_second_try_and_the_next_request_has_a_process() -> None:
    worker = RestartingWorker(TASK, COMMAND, lambda: {"first": 1})
    try:
        answer, is_verdict = worker.send_request({"die": 1}, 9, 9)
        assert (answer["refused"].startswith("it takes too much memory to weave"), is_verdict) == (True, True)
        assert worker.send_request({}, 9, 9) == ({"echo": {}}, True)
        worker.kill()
        assert worker.send_request({}, 9, 9)[1] is False
        assert worker.send_request({}, 9, 9) == ({"refused": STOP_REASON}, False)
    finally:
        worker.close_process()


@pytest.mark.slow
@pytest.mark.parametrize(("request_name", "error"), [("fail", "KeyError at <string>:11"), ("exhaust", "")])
def test_error_that_ends_the_process_is_logged_without_what_was_sent(caplog: pytest.LogCaptureFixture,
                                                                     request_name: str, error: str) -> None:
    worker = RestartingWorker(TASK, COMMAND, lambda: {"first": 1})
    try:
        assert "refused" in worker.send_request({request_name: 1}, 9, 9)[0]
    finally:
        worker.close_process()
    errors = {record.getMessage() for record in caplog.records if record.levelname == "ERROR"}
    assert errors == ({f"the process that weaves cloths failed with {error}"} if error else set())
    assert "what was sent" not in caplog.text


@pytest.mark.slow
def test_process_whose_first_line_cannot_be_made_is_not_kept() -> None:
    first_requests = iter([{"first": object()}, {"first": 1}])
    worker = RestartingWorker(TASK, COMMAND, lambda: next(first_requests))
    try:
        with pytest.raises(TypeError, match="not JSON serializable"):
            worker.send_request({}, 9, 9)
        assert worker.process is None
        assert worker.send_request({"second": 2}, 9, 9) == ({"echo": {"second": 2}}, True)
    finally:
        worker.close_process()


def test_lines_are_answered_until_the_end() -> None:
    here, there = socket.socketpair()
    with here, there, there.makefile("rb") as lines, here.makefile("rb") as answers:
        here.sendall(b'{"a": 1}\n{"a": 2}\n')
        here.shutdown(socket.SHUT_WR)
        answer_requests(there, lines, lambda request: {"twice": 2 * request["a"]})
        there.shutdown(socket.SHUT_WR)
        assert [json.loads(line) for line in answers] == [{"twice": 2}, {"twice": 4}]
