"""How much memory of its own a process takes for something."""

import gc
from collections.abc import Callable
from pathlib import Path


def takes_less(num_bytes: float, read: Callable[[], object]) -> bool:
    """Of the process's own memory. What else it takes at the same time counts as well, but not each time."""
    return any(most_memory(read) < num_bytes for _ in range(3))


def most_memory(read: Callable[[], object]) -> int:
    """How much more was in use at the worst moment of this, in bytes."""
    gc.collect()
    gc.freeze()
    gc.collect()  # of few objects garbage is found soon, however much there is in this process
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is there now
    before = in_memory()
    read()
    after = in_memory()
    # Some systems take away what was not used for a while: it comes back, and is nothing that was taken.
    back = max(0, after["RssFile"] - before["RssFile"]) + max(0, before["VmSwap"] - after["VmSwap"])
    return after["VmHWM"] - before["VmHWM"] - back


def in_memory() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}
