"""Tests of router/processes/memory_trimming.py."""

import asyncio
import subprocess
import sys

import pytest

from router.processes import memory_trimming
from router.processes.memory_trimming import MIN_FREE_BYTES, trim_freed_memory, trim_freed_memory_periodically

# Keeps one of 50 blocks, so that the pages of the others stay with the allocator.
PROGRAM = """
from router.processes import memory_trimming

def read_resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

blocks = [b"x" * 100_000 for _ in range(2_000)]
blocks = blocks[::50]
before = read_resident_bytes()
left = memory_trimming.trim_freed_memory()
assert read_resident_bytes() < before - 150e6, (before, read_resident_bytes())
# Less is free by what Python has allocated since then; on some runs the file's buffer lies there.
assert left - 1e6 < memory_trimming.trim_freed_memory(left) <= left
"""


@pytest.mark.skipif(not memory_trimming.count_allocator_free_bytes(), reason="the allocator is not glibc's")
def test_pages_of_freed_blocks_between_others_are_returned() -> None:
    """Bodies of 2 MB from 32 clients at once left the router with 500 MB."""
    subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=True)


def test_nothing_is_done_for_little_more_than_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = 100
    monkeypatch.setattr(memory_trimming, "count_allocator_free_bytes", lambda: free_bytes)
    monkeypatch.setattr(memory_trimming, "LIBC", None)
    assert trim_freed_memory(0) == 0
    free_bytes = MIN_FREE_BYTES + 49
    assert trim_freed_memory(50) == 50
    free_bytes = 20
    assert trim_freed_memory(50) == 20


def test_memory_is_returned_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        calls: list[int] = []
        called_twice = asyncio.Event()
        loop = asyncio.get_running_loop()

        def record(previous: int) -> int:
            calls.append(previous)
            if len(calls) == 2:
                loop.call_soon_threadsafe(called_twice.set)
            return 7
        monkeypatch.setattr(memory_trimming, "trim_freed_memory", record)
        monkeypatch.setattr(memory_trimming, "CHECK_SECONDS", 0.0)
        task = asyncio.create_task(trim_freed_memory_periodically())
        await called_twice.wait()
        task.cancel()
        await asyncio.wait([task])
        assert calls[:2] == [0, 7]
    asyncio.run(scenario())
