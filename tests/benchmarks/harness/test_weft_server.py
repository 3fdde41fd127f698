"""Tests of the output that benchmarks read from the servers they start."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness.weft_server import convert_sigterm_to_exit, iter_token_times, wait_for_port


def start_printing_process(text: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", f"print({text!r})"], stdout=subprocess.PIPE)


def make_stream(*lines: bytes) -> Any:
    async def content() -> AsyncIterator[bytes]:
        for line in lines:
            yield line
    return SimpleNamespace(content=content())


def collect_token_times(*lines: bytes) -> list[tuple[float, float]]:
    async def collect() -> list[tuple[float, float]]:
        return [pair async for pair in iter_token_times(make_stream(*lines))]
    return asyncio.run(collect())


def test_port_is_read_from_the_banner() -> None:
    with start_printing_process("weft: warm-up\n  url     http://127.0.0.1:4711\n") as server:
        assert wait_for_port(server) == 4711


def test_early_server_exit_ends_the_benchmark() -> None:
    with start_printing_process("no model") as server, pytest.raises(SystemExit,
                                                                     match="weft ended before it was ready"):
        wait_for_port(server)


def test_gaps_are_between_two_tokens() -> None:
    first, second = collect_token_times(b"data:{}\n", b"\n", b"data: {}\n", b": alive\n")
    assert first[1] == 0
    assert second[0] - first[0] == second[1] > 0


def test_stream_error_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="out of luck"):
        collect_token_times(b'data:{"error":"out of luck"}\n')


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
