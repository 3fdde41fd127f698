"""Tests of the output that benchmarks read from the servers they start."""

import os
import signal
import subprocess
import sys

import pytest

from benchmarks.harness.weft_server import convert_sigterm_to_exit, wait_for_port


def start_printing_process(text: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", f"print({text!r})"], stdout=subprocess.PIPE)


def test_port_is_read_from_the_banner() -> None:
    with start_printing_process("weft: warm-up\n  url     http://127.0.0.1:4711\n") as server:
        assert wait_for_port(server) == 4711


def test_early_server_exit_ends_the_benchmark() -> None:
    with start_printing_process("no model") as server, pytest.raises(SystemExit,
                                                                     match="weft ended before it was ready"):
        wait_for_port(server)


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
