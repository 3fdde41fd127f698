"""Memory that the cache may take, and the reason in a sentence.

Reading the system (`read_host`, `read_gpu`) is separate from the arithmetic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import cuda

from shard.errors import Exhausted, NoRoom
from shard.host.cgroups import ROOT, group_folders, read_figures

Result = TypeVar("Result")

HOST_FRACTION = 0.5
GPU_FRACTION = 0.9
NO_MEMORY = "can't allocate memory", "out of memory", "ALLOC_FAILED"  # in messages of torch, CUDA and its libraries


@dataclass(frozen=True, slots=True)
class Available:
    bytes: int
    source: str  # for messages, such as "that the system has available"


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that one shard's cache may take, and why."""

    bytes: int
    why: str


class Accounting(NamedTuple):
    """Names in one version of control groups of the limit, the usage, and its part that can be dropped at any time."""

    limit: str
    usage: str
    files: tuple[str, str]


ACCOUNTINGS = (
    Accounting("memory.max", "memory.current", ("active_file", "inactive_file")),
    Accounting("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def host_room(available: Available, fraction: float | None, num_shards: int) -> Room:
    """Return the room on the host. A step's work space is ignored: it is small compared with what stays available."""
    share = HOST_FRACTION if fraction is None else fraction
    shared = f", shared by {num_shards} shards" if num_shards > 1 else ""
    return Room(int(available.bytes * share) // num_shards,
                f"{share:.0%} of the {gib(available.bytes)} {available.source}{shared}")


def gpu_room(free: int, total: int, fraction: float | None, num_sharing: int) -> Room:
    """Return the room on a GPU that `num_sharing` shards use. The largest step has run, and its work space is still
    allocated."""
    kept = int(total * (1 - (GPU_FRACTION if fraction is None else fraction)))
    shared = f", shared by {num_sharing} shards" if num_sharing > 1 else ""
    return Room(max(0, free - kept) // num_sharing,
                f"the {gib(free)} of {gib(total)} that the GPU has left beside weights and the work of a step, less "
                f"{gib(kept)} that stay free{shared}")


def adapter_room(available: Available, fraction: float, num_sharing: int) -> int:
    """Return the bytes that one shard's adapters may take."""
    return int(available.bytes * fraction) // num_sharing


def check_weights(needed: int, available: Available, num_shards: int) -> None:
    """Check before weights are read that they fit: a process that takes too much memory would be killed without an
    error message. `needed` is for all `num_shards` shards that share the available memory."""
    if needed > available.bytes:
        shards = f" of {num_shards} shards" if num_shards > 1 else ""
        raise NoRoom(f"there is no room for the weights: those{shards} take {gib(needed)}, and there are "
                     f"{gib(available.bytes)} {available.source}; free memory, choose a smaller --dtype or a "
                     "smaller model")


def num_fitting(room: Room, block_bytes: int, num_spare: int) -> int:
    """Return how many blocks fit beside the spare ones, at least 0."""
    return max(0, room.bytes // block_bytes - num_spare)


def check_fitting(count: int, room: Room, block_bytes: int, num_spare: int) -> None:
    if count < 1:
        raise NoRoom(f"there is no room for a cache: {num_spare + 1} blocks of {block_bytes} bytes are the least, "
                     f"and there are {gib(room.bytes)} ({room.why}); raise --memory-fraction, free memory, or "
                     f"choose more shards or a smaller model")


def reason(num_blocks: int, num_fitting: int, num_useful: int, room: Room) -> str:
    """Return why the cache has `num_blocks` blocks, where `num_fitting` fit here and `num_useful` could be used."""
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
# Reading the system


def read_gpu(device: int) -> tuple[int, int]:
    """Return free and total bytes; memory that this process has cached counts as used."""
    free, total = cuda.mem_get_info(device)
    return free, total


def read_host(root: Path = ROOT) -> Available:
    system = read_figures(root / "proc/meminfo")["MemAvailable"] * 1024
    groups = [Available(free, "that the control group of this process may still use") for free in read_groups(root)]
    return min([Available(system, "that the system has available"), *groups], key=lambda available: available.bytes)


def read_groups(root: Path) -> Iterator[int]:
    """Yield the bytes that the control group of this process, and each of its parents, has left of its limit."""
    for folder in group_folders("memory", root):
        for limit, usage, files in ACCOUNTINGS:
            if (folder / limit).exists() and (most := (folder / limit).read_text().strip()) != "max":
                stat = read_figures(folder / "memory.stat")
                used = int((folder / usage).read_text()) - sum(stat[name] for name in files)
                yield max(0, int(most) - max(0, used))


def within_memory(device: torch.device, call: Callable[[], Result]) -> Result:
    """Return the result of `call`. If there is no memory for it, release all its tensors, then raise Exhausted."""
    try:
        return call()
    except (MemoryError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        reason = str(error).partition("\n")[0] or "there is no memory"
    if device.type == "cuda":
        cuda.empty_cache()  # cached pieces have other sizes than later steps need
    raise Exhausted(reason)


def is_exhaustion(error: BaseException) -> bool:
    """Whether the error means that memory ran out. Torch has a separate error type only for its GPU allocator. While a
    graph is captured, another error is raised on top of it."""
    return (isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in NO_MEMORY)
            or (error.__context__ is not None and is_exhaustion(error.__context__)))
