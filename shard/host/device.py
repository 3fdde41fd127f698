"""Device and threads of one rank, and transfers between host and device."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate, cycle

import torch
from torch import Tensor, cuda

UNDER_WAY = 2  # steps at most: the last, and one that began before the results of the last were known
CORES_WITHOUT_ROUTER = 4  # up to this many cores the shards use all, and the router runs in between
ALIGNED = 4  # numbers of 32 bits: 16 bytes
NEAR = 4096  # numbers; a gap up to this size is copied along, which is cheaper than another launch
CODES = {torch.int32: "i", torch.int64: "q", torch.float64: "d"}  # type codes of `array`


def choose_device(asked: str, rank: int, num_gpus: int) -> torch.device:
    """Return the device of a rank. Ranks are assigned to GPUs round-robin, so several may share one."""
    if asked == "cuda" and not num_gpus:
        raise ValueError("--device cuda needs a GPU that torch can use, there is none; use --device cpu")
    if asked == "cpu" or not num_gpus:
        return torch.device("cpu")
    return torch.device("cuda", rank % num_gpus)


def kind_of(device: torch.device) -> str:
    """Return the kind of a device: cpu, or the name of the GPU's model."""
    return device.type if device.type == "cpu" else torch.cuda.get_device_name(device)


def count_sharing(rank: int, size: int, num_gpus: int) -> int:
    """Return how many ranks use this rank's GPU."""
    return len(range(rank % num_gpus, size, num_gpus))


def count_threads(asked: int, num_cores: int, num_shards: int) -> int:
    """Return the number of threads of one shard on a CPU with `num_cores` cores."""
    free = num_cores if num_cores <= CORES_WITHOUT_ROUTER else num_cores - 1
    return asked or max(1, free // num_shards)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in this thread alone. Helper threads would compete for the cores with those of the steps, and
    each side waits until all of its helpers are done."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def at(device: torch.device) -> AbstractContextManager[object]:
    """Make the device current: Triton launches kernels on the thread's current device, not on that of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Standing:
    """Lists of numbers in device buffers with fixed addresses, read by captured steps and filled from pinned host
    memory. Entries past the end of the last sent list are stale. Before another `send`, the caller must have waited for
    all steps but the one that reads the last sent lists."""

    def __init__(self, capacities: Sequence[int], dtype: torch.dtype, device: torch.device,
                 initial: Sequence[float] = ()) -> None:
        """Allocate the lists. `initial` has the value that fills each list before anything is sent; zero by default."""
        firsts = [0, *accumulate(count + -count % ALIGNED for count in capacities)]
        self._there = torch.zeros(firsts[-1], dtype=dtype, device=device)
        self._places = [slice(first, first + count) for first, count in zip(firsts, capacities, strict=False)]
        for place, value in zip(self._places, initial, strict=False):
            self._there[place] = value
        host = self._there.cpu()
        self._hosts = cycle([host.pin_memory() if device.type == "cuda" else host.clone()
                             for _ in range(UNDER_WAY)])  # the last copy may still be queued on the device

    @property
    def lists(self) -> list[Tensor]:
        """Lists on the device, each at its full capacity."""
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
    """Merge rising slices into runs that are copied at once, with gaps that are cheaper to copy than another launch."""
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
    """Copy from the device that may be under way."""

    def __init__(self, there: Tensor, arrived: cuda.Event | None) -> None:
        self._there = there
        self._arrived = arrived

    def wait(self) -> None:
        """Wait until the copy is complete. Any thread may call this."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def rows(self) -> list[list[float]]:
        self.wait()
        found: list[list[float]] = self._there.tolist()
        return found


class Bringing:
    """Copier of numbers from one device buffer to the host while the device computes."""

    def __init__(self, source: Tensor) -> None:
        is_cuda = source.device.type == "cuda"
        self._source = source
        self._hosts = cycle([torch.empty_like(source, device="cpu", pin_memory=is_cuda) for _ in range(UNDER_WAY)])
        self._aside = cuda.Stream(source.device) if is_cuda else None  # type: ignore[no-untyped-call]  # torch has no types there

    def begin(self, rows: int) -> Arriving:
        """Begin to copy the first rows, as they are after all work that was launched before."""
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
        """Make work that is launched from now on wait for the copies under way, so that it may write to the buffer."""
        if self._aside is not None:
            cuda.current_stream(self._source.device).wait_stream(self._aside)


def sent(lists: list[list[int]], device: torch.device) -> list[Tensor]:
    """Copy the lists to the device in one transfer, as int32. Each begins at a multiple of 16 bytes: Triton compiles
    kernels again for other addresses."""
    together = array("i")
    for some in lists:
        together.extend(some)
        together.extend([0] * (-len(some) % ALIGNED))
    firsts = accumulate((len(some) + -len(some) % ALIGNED for some in lists), initial=0)
    whole = torch.frombuffer(together, dtype=torch.int32).to(device) if together else torch.empty(
        0, dtype=torch.int32, device=device)
    return [whole[first:first + len(some)] for first, some in zip(firsts, lists, strict=False)]
