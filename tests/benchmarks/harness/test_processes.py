import os
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest

from benchmarks.harness.processes import (
    ProcessStartError,
    ServerProcesses,
    convert_sigterm_to_exit,
    read_machine_cpu_seconds,
    read_process_cpu_seconds,
    read_server_port,
    run_child,
    run_children,
)

FAILING_PROGRAM = "import json, os, sys; os.write(json.loads(sys.argv[1])['ready_fd'], b'failed no luck\\n')"
SERVING_PROGRAM = ("import json, os, sys; told = json.loads(sys.argv[1]); os.write(told['ready_fd'], "
                   "b'progress warm-up 0 0\\nready 7 {}\\n'); "
                   "os.read(told['parent_fd'], 1)")


def test_cpu_seconds_are_those_of_the_process() -> None:
    before = time.process_time()
    assert before <= read_process_cpu_seconds(os.getpid()) <= time.process_time()


def test_machine_seconds_include_this_process() -> None:
    assert read_machine_cpu_seconds() > time.process_time() - 0.1


def test_step_times_are_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "steps").write_bytes(array("d", [1.0, 1.5]).tobytes())
    assert list(ServerProcesses(1, 2, 3, tmp_path / "steps").read_step_timestamps()) == [1.0, 1.5]


def test_child_lives_as_long_as_its_block() -> None:
    with run_child(("-c", SERVING_PROGRAM), {}) as (process_id, ready_word):
        assert ready_word == "7"
        assert Path(f"/proc/{process_id}").exists()
    assert not Path(f"/proc/{process_id}").exists()


def test_failed_start_reports_its_reason() -> None:
    with pytest.raises(ProcessStartError, match="did not start: no luck"), run_child(("-c", FAILING_PROGRAM), {}):
        pass


def test_immediate_exit_of_a_child_is_noticed() -> None:
    with pytest.raises(ProcessStartError, match="it ended"), run_child(("-c", ""), {}):
        pass


def test_children_may_wait_for_each_other(tmp_path: Path) -> None:
    """Each child opens one end of a named pipe, which blocks until both ends are open."""
    os.mkfifo(pipe := tmp_path / "pipe")
    meet = (
        f"import json, os, sys; order = json.loads(sys.argv[1]); open({str(pipe)!r}, order['mode'])\n{SERVING_PROGRAM}")
    with run_children(("-c", meet), [{"mode": "rb"}, {"mode": "wb"}]):
        pass


def test_waiting_child_is_ended_when_another_fails() -> None:
    program = (
        f"import json, sys, threading; json.loads(sys.argv[1])['fails'] or threading.Event().wait()\n{FAILING_PROGRAM}")
    with (pytest.raises(ProcessStartError, match="no luck"),
          run_children(("-c", program), [{"fails": False}, {"fails": True}])):
        pass


def start_printing_process(text: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", f"print({text!r})"], stdout=subprocess.PIPE)


def test_port_is_read_from_the_banner() -> None:
    with start_printing_process("weft: warm-up\n  url     http://127.0.0.1:4711\n") as server:
        assert read_server_port(server) == 4711


def test_early_server_exit_ends_the_benchmark() -> None:
    with start_printing_process("no model") as server, pytest.raises(SystemExit,
                                                                     match="weft ended before it was ready"):
        read_server_port(server)


def test_sigterm_runs_cleanup() -> None:
    """A terminated benchmark used to leave its server running."""
    ended = []

    def benchmark() -> None:
        with convert_sigterm_to_exit():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                ended.append("what was started")

    with pytest.raises(SystemExit, match="143"):
        benchmark()
    assert ended == ["what was started"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
