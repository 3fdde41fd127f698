"""Return of freed memory to the system. The allocator of glibc keeps the pages of freed blocks that lie between others:
after bodies of megabytes from many clients at once these were hundreds of megabytes, for good."""

import asyncio
import ctypes

CHECK_SECONDS = 10.0
MIN_FREE_BYTES = 64 * 2**20  # that are worth the work; a process that serves small requests has some 5 MiB

LIBC = ctypes.CDLL(None)


class AllocatorStatistics(ctypes.Structure):
    """Statistics of malloc, `struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"))


def count_allocator_free_bytes() -> int:
    """Return the bytes that the allocator keeps free; 0 if it does not say, as others than glibc's."""
    if not (hasattr(LIBC, "mallinfo2") and hasattr(LIBC, "malloc_trim")):
        return 0
    LIBC.mallinfo2.restype = AllocatorStatistics
    return int(LIBC.mallinfo2().fordblks)


def trim_freed_memory(previous_free_bytes: int = 0) -> int:
    """Return free pages to the system if there are many more than the last call left; return how many bytes are free
    then, parts of pages for the most part. Takes some milliseconds for each 100 MiB, without the interpreter's lock."""
    free_bytes = count_allocator_free_bytes()
    if free_bytes < previous_free_bytes + MIN_FREE_BYTES:
        return min(previous_free_bytes, free_bytes)
    LIBC.malloc_trim(0)
    return count_allocator_free_bytes()


async def trim_freed_memory_periodically() -> None:
    free_bytes = 0
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        free_bytes = await asyncio.to_thread(trim_freed_memory, free_bytes)
