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
    before = in_memory("VmHWM")
    read()
    return in_memory("VmHWM") - before


def in_memory(what: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{what}:")[2].split()[0]) * 1024
