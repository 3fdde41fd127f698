"""Where one rank computes: on which device, with how many threads, and how numbers come there. Knows nothing of what is
computed."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor

CORES_WITHOUT_ROUTER = 4  # up to so many the shards use all, and the router finds time between
ALIGNED = 4  # numbers of 32 bits


def choose_device(asked: str, rank: int, num_gpus: int) -> torch.device:
    """Ranks go round the GPUs, so that several may share one."""
    if asked == "cuda" and not num_gpus:
        raise ValueError("--device cuda needs a GPU that torch can use, there is none; use --device cpu")
    if asked == "cpu" or not num_gpus:
        return torch.device("cpu")
    return torch.device("cuda", rank % num_gpus)


def kind_of(device: torch.device) -> str:
    """What tells one kind of device from another."""
    return device.type if device.type == "cpu" else torch.cuda.get_device_name(device)


def count_sharing(rank: int, size: int, num_gpus: int) -> int:
    """How many ranks use this rank's GPU."""
    return len(range(rank % num_gpus, size, num_gpus))


def count_threads(asked: int, num_cores: int, num_shards: int) -> int:
    """Threads of one shard on a CPU with so many cores."""
    free = num_cores if num_cores <= CORES_WITHOUT_ROUTER else num_cores - 1
    return asked or max(1, free // num_shards)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes in this thread alone meanwhile. With helpers it would take turns on the cores with those of the
    steps, and each side waits until all of its helpers are done."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sent(lists: list[list[int]], device: torch.device) -> list[Tensor]:
    """To the device in one piece, as 32 bits. Each begins at a multiple of 16 bytes: kernels are compiled anew for
    addresses that do not."""
    together = array("i")
    for some in lists:
        together.extend(some)
        together.extend([0] * (-len(some) % ALIGNED))
    firsts = accumulate((len(some) + -len(some) % ALIGNED for some in lists), initial=0)
    whole = torch.frombuffer(together, dtype=torch.int32).to(device) if together else torch.empty(
        0, dtype=torch.int32, device=device)
    return [whole[first:first + len(some)] for first, some in zip(firsts, lists, strict=False)]
