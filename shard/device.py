"""Where one rank computes: on which device, with how many threads, and how numbers come there. Knows nothing of what is
computed."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor

CORES_WITHOUT_ROUTER = 4  # up to so many the shards use all, and the router finds time between
ALIGNED = 4  # numbers of 32 bits
CODES = {torch.int32: "i", torch.int64: "q"}  # of arrays


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


class Standing:
    """Lists of numbers on the device, each in places of its own, which it keeps: what was captured with their addresses
    reads what was sent last. Whoever sends again has waited for what reads."""

    def __init__(self, capacities: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        firsts = [0, *accumulate(count + -count % ALIGNED for count in capacities)]
        self._host = torch.empty(firsts[-1], dtype=dtype, pin_memory=device.type == "cuda")
        self._there = torch.zeros(firsts[-1], dtype=dtype, device=device)
        self._places = [slice(first, first + count) for first, count in zip(firsts, capacities, strict=False)]

    @property
    def lists(self) -> list[Tensor]:
        """As long as they may be."""
        return [self._there[place] for place in self._places]

    def holds(self, lists: Sequence[Sequence[int]]) -> bool:
        return all(len(some) <= place.stop - place.start for some, place in zip(lists, self._places, strict=True))

    def send(self, lists: Sequence[Sequence[int]]) -> None:
        for some, place in zip(lists, self._places, strict=True):
            if not some:
                continue
            filled = slice(place.start, place.start + len(some))
            self._host[filled] = torch.frombuffer(array(CODES[self._host.dtype], some), dtype=self._host.dtype)
            self._there[filled].copy_(self._host[filled], non_blocking=True)


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
