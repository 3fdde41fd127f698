"""Memory in huge pages, if the system has them: for weights and the KV cache, of which a step reads each page once.

A processor remembers the addresses of one or two thousand pages, so with small ones it looks up an address for almost
every 4 KiB that it reads.
"""

import mmap
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2**21


def allocate_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros. The system allocates a page when it is first written."""
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def pack_contiguously(tensor: Tensor) -> Tensor:
    """Return a contiguous copy in such memory."""
    packed = allocate_in_huge_pages(tuple(tensor.shape), tensor.dtype)
    packed.copy_(tensor)
    return packed
