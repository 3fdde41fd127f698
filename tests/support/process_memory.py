"""Measurement of the private memory that a function needs at its peak."""

import gc
from collections.abc import Callable
from pathlib import Path


def needs_less_memory(num_bytes: float, function: Callable[[], object]) -> bool:
    """Return whether `function` needs less than `num_bytes` of the process's private memory.

    Memory that the process allocates for something else meanwhile counts as well, so up to three attempts are made.
    """
    return any(measure_peak_memory(function) < num_bytes for _ in range(3))


def measure_peak_memory(function: Callable[[], object]) -> int:
    """Return the peak of additional memory in use during `function`, in bytes."""
    gc.collect()
    gc.freeze()
    gc.collect()  # with few tracked objects left, garbage of `function` is collected early
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current value
    before = read_memory_status()
    function()
    after = read_memory_status()
    # Some systems evict pages that were unused for a while; pages that return are not additional memory.
    returned_bytes = max(0, after["RssFile"] - before["RssFile"]) + max(0, before["VmSwap"] - after["VmSwap"])
    return after["VmHWM"] - before["VmHWM"] - returned_bytes


def read_memory_status() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}
