"""Measurement of the private memory that a function needs at its peak."""

import gc
from collections.abc import Callable
from pathlib import Path


def takes_less(num_bytes: float, read: Callable[[], object]) -> bool:
    """Return whether `read` needs less than `num_bytes` of the process's private memory.

    Memory that the process allocates for something else meanwhile counts as well, so up to three attempts are made.
    """
    return any(most_memory(read) < num_bytes for _ in range(3))


def most_memory(read: Callable[[], object]) -> int:
    """Return the peak of additional memory in use during `read`, in bytes."""
    gc.collect()
    gc.freeze()
    gc.collect()  # with few tracked objects left, garbage of `read` is collected early
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current value
    before = in_memory()
    read()
    after = in_memory()
    # Some systems evict pages that were unused for a while; pages that return are not additional memory.
    back = max(0, after["RssFile"] - before["RssFile"]) + max(0, before["VmSwap"] - after["VmSwap"])
    return after["VmHWM"] - before["VmHWM"] - back


def in_memory() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}
