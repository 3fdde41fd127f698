"""Memory that the cache may take, and the reason in a sentence. Reading the system is separate from the arithmetic."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import cuda

from shard.errors import StartupOutOfMemory
from shard.hardware.cgroups import ROOT_FOLDER, iter_cgroup_folders, read_named_numbers

DEFAULT_HOST_FRACTION = 0.5
DEFAULT_GPU_FRACTION = 0.9
# in messages of torch, CUDA and its libraries
OUT_OF_MEMORY_MESSAGES = "can't allocate memory", "out of memory", "ALLOC_FAILED"
# oneDNN's message where it got no memory. It keeps the failure: the same product fails from then on.
BROKEN_PRIMITIVE_PATTERN = re.compile("could not create a primitive(?! descriptor)")
# names in each version of control groups of the limit, the usage, and its parts that can be dropped at any time
CGROUP_MEMORY_FILES = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Bytes that are available, and where that number comes from."""

    bytes: int
    source: str  # for messages, such as "that the system has available"


@dataclass(frozen=True, slots=True)
class CacheBudget:
    """Bytes that one shard's cache may take, and why."""

    bytes: int
    reason: str


def compute_host_cache_budget(available: AvailableMemory, fraction: float | None, num_shards: int) -> CacheBudget:
    """Return the room on the host. A step's work space is ignored: it is small compared with what stays available."""
    share = DEFAULT_HOST_FRACTION if fraction is None else fraction
    shared = f", shared by {num_shards} shards" if num_shards > 1 else ""
    return CacheBudget(int(available.bytes * share) // num_shards,
                       f"{share:.0%} of the {format_gib(available.bytes)} {available.source}{shared}")


def compute_gpu_cache_budget(free: int, total: int, fraction: float | None, num_sharing_shards: int) -> CacheBudget:
    """Return the room on a GPU that `num_sharing_shards` shards use. The largest step has run, and its work space is
    still allocated."""
    reserved = int(total * (1 - (DEFAULT_GPU_FRACTION if fraction is None else fraction)))
    shared = f", shared by {num_sharing_shards} shards" if num_sharing_shards > 1 else ""
    return CacheBudget(max(0, free - reserved) // num_sharing_shards,
                       f"the {format_gib(free)} of {format_gib(total)} that the GPU has left beside weights and the "
                       f"work of a step, less {format_gib(reserved)} that stay free{shared}")


def check_weights_fit(needed_bytes: int, available: AvailableMemory, num_shards: int) -> None:
    """Check before weights are read that they fit: a process that takes too much memory would be killed without an
    error message. `needed_bytes` is for all `num_shards` shards that share the available memory."""
    if needed_bytes > available.bytes:
        shards = f" of {num_shards} shards" if num_shards > 1 else ""
        raise StartupOutOfMemory(
            f"there is no room for the weights: those{shards} take {format_gib(needed_bytes)}, and there are "
            f"{format_gib(available.bytes)} {available.source}; free memory, choose a smaller --dtype or a "
            "smaller model")


def count_fitting_blocks(budget: CacheBudget, block_bytes: int, num_reserved_blocks: int) -> int:
    """Return how many blocks fit beside the reserved ones, at least 0."""
    return max(0, budget.bytes // block_bytes - num_reserved_blocks)


def check_any_block_fits(num_blocks: int, budget: CacheBudget, block_bytes: int, num_reserved_blocks: int) -> None:
    if num_blocks < 1:
        raise StartupOutOfMemory(
            f"there is no room for a cache: {num_reserved_blocks + 1} blocks of {block_bytes} bytes are the least, "
            f"and there are {format_gib(budget.bytes)} ({budget.reason}); raise --memory-fraction, free memory, or "
            f"choose more shards or a smaller model")


def explain_num_blocks(num_blocks: int, num_fitting_blocks: int, num_useful_blocks: int, budget: CacheBudget, *,
                       is_alone: bool) -> str:
    """Return why the cache has `num_blocks` blocks, where `num_fitting_blocks` fit here and `num_useful_blocks` could
    be used. `is_alone`: whether there is one shard."""
    if num_blocks == num_fitting_blocks:
        return budget.reason
    if num_blocks == num_useful_blocks:
        return "enough for as many sequences as may run at once (--max-batch-size)"
    limit = "the value of --max-batch-total-tokens"
    return limit if is_alone else f"{limit}, or what fits on the shard with the least room"


def describe_cache_size(num_blocks: int, block_size: int, block_bytes: int, num_fitting_blocks: int,
                        reason: str) -> str:
    fitting = f"; here {num_fitting_blocks} blocks would fit" if num_blocks < num_fitting_blocks else ""
    return (f"the cache has {num_blocks} blocks of {block_size} places ({num_blocks * block_size} tokens, "
            f"{format_gib(num_blocks * block_bytes)}): {reason}{fitting}")


def format_gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def read_gpu_memory(device: int) -> tuple[int, int]:
    """Return free and total bytes; memory that this process has cached counts as used."""
    free, total = cuda.mem_get_info(device)
    return free, total


def read_host_memory(root: Path = ROOT_FOLDER) -> AvailableMemory:
    """Return the least of what the system has available, and what the control group of this process and each of its
    parents has left of its limit."""
    available = AvailableMemory(read_named_numbers(root / "proc/meminfo")["MemAvailable"] * 1024,
                                "that the system has available")
    for folder in iter_cgroup_folders("memory", root):
        for limit_file, usage_file, page_cache_keys in CGROUP_MEMORY_FILES:
            if (folder / limit_file).exists() and (limit_text := (folder / limit_file).read_text().strip()) != "max":
                stat = read_named_numbers(folder / "memory.stat")
                used = int((folder / usage_file).read_text()) - sum(stat[name] for name in page_cache_keys)
                left = max(0, int(limit_text) - max(0, used))
                if left < available.bytes:
                    available = AvailableMemory(left, "that the control group of this process may still use")
    return available


def is_unrecoverable_error(error: BaseException) -> bool:
    """Whether steps of this process would go on failing when there is memory again."""
    return BROKEN_PRIMITIVE_PATTERN.search(str(error)) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out. Torch has a separate error type only for its GPU allocator. While a
    graph is captured, another error is raised on top of it."""
    return (isinstance(error, MemoryError | torch.OutOfMemoryError)
            or any(word in str(error) for word in OUT_OF_MEMORY_MESSAGES)
            or (error.__context__ is not None and is_out_of_memory(error.__context__)))
