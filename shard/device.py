"""Where one rank computes: on which device, with how many threads, and how numbers come there. Knows nothing of what is
computed."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate, cycle

import torch
from torch import Tensor, cuda

UNDER_WAY = 2  # steps at most: the last, and one that began before anybody knew what came of it
CORES_WITHOUT_ROUTER = 4  # up to so many the shards use all, and the router finds time between
ALIGNED = 4  # numbers of 32 bits
NEAR = 4096  # numbers that are rather copied, too, than something else in another launch
CODES = {torch.int32: "i", torch.int64: "q", torch.float64: "d"}  # of arrays


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


def at(device: torch.device) -> AbstractContextManager[object]:
    """Kernels in Triton are launched where their thread is, wherever their tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Standing:
    """Lists of numbers on the device, each in places of its own, which it keeps: what was captured with their addresses
    reads what was sent last. Behind the end of a list stands something that stood there before. Whoever sends again
    has waited for what read all but the last that was sent."""

    def __init__(self, capacities: Sequence[int], dtype: torch.dtype, device: torch.device,
                 initial: Sequence[float] = ()) -> None:
        """`initial`: what each list is full of before anything is sent; zeros by default."""
        firsts = [0, *accumulate(count + -count % ALIGNED for count in capacities)]
        self._there = torch.zeros(firsts[-1], dtype=dtype, device=device)
        self._places = [slice(first, first + count) for first, count in zip(firsts, capacities, strict=False)]
        for place, value in zip(self._places, initial, strict=False):
            self._there[place] = value
        host = self._there.cpu()
        self._hosts = cycle([host.pin_memory() if device.type == "cuda" else host.clone()
                             for _ in range(UNDER_WAY)])  # a copy may still wait for its turn on the device

    @property
    def lists(self) -> list[Tensor]:
        """As long as they may be."""
        return [self._there[place] for place in self._places]

    def holds(self, lists: Sequence[Sequence[int]]) -> bool:
        return all(len(some) <= place.stop - place.start for some, place in zip(lists, self._places, strict=True))

    def send(self, lists: Sequence[Sequence[float]]) -> None:
        host = next(self._hosts)
        filled = [slice(place.start, place.start + len(some)) for some, place in zip(lists, self._places, strict=True)]
        for some, place in zip(lists, filled, strict=True):
            if some:
                host[place] = torch.frombuffer(array(CODES[host.dtype], some), dtype=host.dtype)
        for run in runs_of(filled):
            self._there[run].copy_(host[run], non_blocking=True)


def runs_of(places: Sequence[slice]) -> list[slice]:
    """What is copied at once to fill these, which rise, and of what lies between them no more than is cheaper than
    another copy."""
    found: list[slice] = []
    for place in places:
        if place.start == place.stop:
            continue
        if found and place.start - found[-1].stop <= NEAR:
            found[-1] = slice(found[-1].start, place.stop)
        else:
            found.append(place)
    return found


class Arriving:
    """Numbers that are on their way from the device."""

    def __init__(self, there: Tensor, arrived: cuda.Event | None) -> None:
        self._there = there
        self._arrived = arrived

    def wait(self) -> None:
        """Until they are there. Any thread may."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def rows(self) -> list[list[float]]:
        self.wait()
        found: list[list[float]] = self._there.tolist()
        return found


class Bringing:
    """Brings numbers from their place on the device while it goes on computing."""

    def __init__(self, source: Tensor) -> None:
        is_cuda = source.device.type == "cuda"
        self._source = source
        self._hosts = cycle([torch.empty_like(source, device="cpu", pin_memory=is_cuda) for _ in range(UNDER_WAY)])
        self._aside = cuda.Stream(source.device) if is_cuda else None  # type: ignore[no-untyped-call]  # torch has no types there

    def begin(self, rows: int) -> Arriving:
        """The first ones, as they are when all that was launched before is done."""
        there = next(self._hosts)[:rows]
        if self._aside is None:
            return Arriving(there.copy_(self._source[:rows]), None)
        self._aside.wait_stream(cuda.current_stream(self._source.device))
        with cuda.stream(self._aside):
            there.copy_(self._source[:rows], non_blocking=True)
            arrived = cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as above
            arrived.record(self._aside)
        return Arriving(there, arrived)

    def await_begun(self) -> None:
        """What is launched from now on may write to the place: it comes after what is being brought."""
        if self._aside is not None:
            cuda.current_stream(self._source.device).wait_stream(self._aside)


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
