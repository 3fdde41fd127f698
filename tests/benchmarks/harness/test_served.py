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

from benchmarks.harness.served import ended_by_exit, token_times, wait_for_port


def started(text: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", f"print({text!r})"], stdout=subprocess.PIPE)


def stream(*lines: bytes) -> Any:
    async def content() -> AsyncIterator[bytes]:
        for line in lines:
            yield line
    return SimpleNamespace(content=content())


def times(*lines: bytes) -> list[tuple[float, float]]:
    async def heard() -> list[tuple[float, float]]:
        return [pair async for pair in token_times(stream(*lines))]
    return asyncio.run(heard())


def test_the_port_is_that_of_the_banner() -> None:
    with started("weft: warm-up\n  url     http://127.0.0.1:4711\n") as server:
        assert wait_for_port(server) == 4711


def test_a_server_that_ends_ends_the_benchmark() -> None:
    with started("no model") as server, pytest.raises(SystemExit, match="weft ended before it was ready"):
        wait_for_port(server)


def test_gaps_lie_between_two_tokens() -> None:
    first, second = times(b"data:{}\n", b"\n", b"data: {}\n", b": alive\n")
    assert first[1] == 0
    assert second[0] - first[0] == second[1] > 0


def test_an_error_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="out of luck"):
        times(b'data:{"error":"out of luck"}\n')


def test_who_is_told_to_end_ends_what_it_started() -> None:
    """A terminated benchmark used to leave its server running."""
    ended = []

    def benchmark() -> None:
        with ended_by_exit():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                ended.append("what was started")

    with pytest.raises(SystemExit, match="143"):
        benchmark()
    assert ended == ["what was started"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
