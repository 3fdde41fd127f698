"""How much memory the cache may take, and in a sentence why.

Reading the system (`read_host`, `read_gpu`) is apart from the arithmetic. Knows nothing of models: what a
block takes is told.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import cuda

from shard.errors import Exhausted, NoRoom
from shard.system import ROOT, group_folders, read_figures

Result = TypeVar("Result")

HOST_FRACTION = 0.5
GPU_FRACTION = 0.9
NO_MEMORY = "can't allocate memory", "out of memory", "ALLOC_FAILED"  # as torch, CUDA and its libraries say it


@dataclass(frozen=True, slots=True)
class Available:
    bytes: int
    source: str  # who says so, as in "that the system has available"


@dataclass(frozen=True, slots=True)
class Room:
    """What one shard's cache may take, and how that came about."""

    bytes: int
    why: str


class Accounting(NamedTuple):
    """What a version of control groups calls its limit, its usage, and the part of it that can be dropped any time."""

    limit: str
    usage: str
    files: tuple[str, str]


ACCOUNTINGS = (
    Accounting("memory.max", "memory.current", ("active_file", "inactive_file")),
    Accounting("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def host_room(available: Available, fraction: float | None, num_shards: int) -> Room:
    """What a step works with is little beside what is left."""
    share = HOST_FRACTION if fraction is None else fraction
    shared = f", shared by {num_shards} shards" if num_shards > 1 else ""
    return Room(int(available.bytes * share) // num_shards,
                f"{share:.0%} of the {gib(available.bytes)} {available.source}{shared}")


def gpu_room(free: int, total: int, fraction: float | None, num_sharing: int) -> Room:
    """After the largest step, whose work space the process still holds; so many shards use this GPU."""
    kept = int(total * (1 - (GPU_FRACTION if fraction is None else fraction)))
    shared = f", shared by {num_sharing} shards" if num_sharing > 1 else ""
    return Room(max(0, free - kept) // num_sharing,
                f"the {gib(free)} of {gib(total)} that the GPU has left beside weights and the work of a step, less "
                f"{gib(kept)} that stay free{shared}")


def adapter_room(available: Available, fraction: float, num_sharing: int) -> int:
    """What one shard's adapters may take of it."""
    return int(available.bytes * fraction) // num_sharing


def check_weights(needed: int, available: Available, num_shards: int) -> None:
    """Before they are read: a process that takes more than there is would be killed without a word. `needed` is for all
    of so many shards that share what is available."""
    if needed > available.bytes:
        shards = f" of {num_shards} shards" if num_shards > 1 else ""
        raise NoRoom(f"there is no room for the weights: those{shards} take {gib(needed)}, and there are "
                     f"{gib(available.bytes)} {available.source}; free memory, choose a smaller --dtype or a "
                     "smaller model")


def num_fitting(room: Room, block_bytes: int, num_spare: int) -> int:
    """How many blocks fit beside the spare ones; none when it is less than one."""
    return max(0, room.bytes // block_bytes - num_spare)


def check_fitting(count: int, room: Room, block_bytes: int, num_spare: int) -> None:
    if count < 1:
        raise NoRoom(f"there is no room for a cache: {num_spare + 1} blocks of {block_bytes} bytes are the least, "
                     f"and there are {gib(room.bytes)} ({room.why}); raise --memory-fraction, free memory, or "
                     f"choose more shards or a smaller model")


def reason(num_blocks: int, num_fitting: int, num_useful: int, room: Room) -> str:
    """Why the cache has this many blocks where `num_fitting` would fit here, and no more than `num_useful` be used."""
    if num_blocks == num_fitting:
        return room.why
    if num_blocks == num_useful:
        return "all that as many sequences as may run at once can use"
    return "no more was asked for, or fits on another shard"


def explain(num_blocks: int, block_size: int, block_bytes: int, num_fitting: int, why: str) -> str:
    fitting = f"; here {num_fitting} blocks would fit" if num_blocks < num_fitting else ""
    return (f"the cache has {num_blocks} blocks of {block_size} places ({num_blocks * block_size} tokens, "
            f"{gib(num_blocks * block_bytes)}): {why}{fitting}")


def gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


# ---------------------------------------------------------------------------------------------------------------------
# What the system says


def read_gpu(device: int) -> tuple[int, int]:
    """Free and total bytes; what this process has cached counts as used."""
    free, total = cuda.mem_get_info(device)
    return free, total


def read_host(root: Path = ROOT) -> Available:
    system = read_figures(root / "proc/meminfo")["MemAvailable"] * 1024
    groups = [Available(free, "that the control group of this process may still use") for free in read_groups(root)]
    return min([Available(system, "that the system has available"), *groups], key=lambda available: available.bytes)


def read_groups(root: Path) -> Iterator[int]:
    """What the control group of this process, and each around it, has left of its limit."""
    for folder in group_folders("memory", root):
        for limit, usage, files in ACCOUNTINGS:
            if (folder / limit).exists() and (most := (folder / limit).read_text().strip()) != "max":
                stat = read_figures(folder / "memory.stat")
                used = int((folder / usage).read_text()) - sum(stat[name] for name in files)
                yield max(0, int(most) - max(0, used))


def within_memory(device: torch.device, call: Callable[[], Result]) -> Result:
    """What is called, with all that it computed with gone when there was no memory for it: then it raises Exhausted."""
    try:
        return call()
    except (MemoryError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        reason = str(error).partition("\n")[0] or "there is no memory"
    if device.type == "cuda":
        cuda.empty_cache()  # in pieces of other sizes
    raise Exhausted(reason)


def is_exhaustion(error: BaseException) -> bool:
    """Torch has an error of its own for it only where its own allocator asked a GPU. While a graph is captured another
    error comes on top of it."""
    return (isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in NO_MEMORY)
            or (error.__context__ is not None and is_exhaustion(error.__context__)))
