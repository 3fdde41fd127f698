"""The ranks that share a model, as one group: sums, gathers and broadcasts between them.

Everything is added in rank order, so that all ranks hold the same bits and a rerun gives them again. All ranks live on
one machine and meet at a file that is new for every group. Knows nothing of what is exchanged. Whether a rank hangs is
for others to judge: a call that waits longer than TIMEOUT raises only for want of a better judge.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor, distributed
from torch.distributed import FileStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]  # not in its list

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(minutes=10)


class Group(Protocol):
    """Every rank makes the same calls in the same order, with tensors of the same shapes."""

    rank: int
    size: int

    def sum(self, x: Tensor) -> Tensor:
        """The ranks' partial results, added in rank order."""

    def gather(self, x: Tensor) -> Tensor | None:
        """On rank 0 the ranks' parts side by side along the last axis, on the others nothing."""

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's values, in place."""

    def minimum(self, number: int) -> int:
        """The least of the ranks' numbers. Nobody gets it before everybody has called."""

    def close(self) -> None: ...


class Alone:
    """The group of one."""

    rank = 0
    size = 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        return x

    def minimum(self, number: int) -> int:
        return number

    def close(self) -> None:
        pass


class GlooRanks:
    """Everybody sends to everybody and adds by itself: gloo's own collectives pass each call through a further thread,
    which doubles the time of a short one. Tensors of a GPU travel through the host's memory."""

    def __init__(self, rank: int, size: int, store: Store) -> None:
        self.rank, self.size = rank, size
        self._others = [other for other in range(size) if other != rank]
        gloo: Any = ProcessGroupGloo  # its types lack half of it
        options = gloo._Options()
        options._timeout, options._threads = TIMEOUT, 1
        options._devices = [gloo.create_device(hostname=LOOPBACK)]  # the machine's own name need not resolve
        self._links = gloo(store, rank, size, options)

    def sum(self, x: Tensor) -> Tensor:
        return add_up(self._exchange(x.cpu())).to(x.device)

    def gather(self, x: Tensor) -> Tensor | None:
        mine = x.cpu().contiguous()
        if self.rank:
            self._links.send([mine], 0, 0).wait()
            return None
        return torch.cat(self._receive(mine), dim=-1).to(x.device)

    def broadcast(self, x: Tensor) -> Tensor:
        mine = x.cpu().contiguous()
        if self.rank:
            self._links.recv([mine], 0, 0).wait()
            return x if mine is x else x.copy_(mine)
        self._wait([self._links.send([mine], other, 0) for other in self._others])
        return x

    def minimum(self, number: int) -> int:
        return min(int(part) for part in self._exchange(torch.tensor([number])))

    def close(self) -> None:
        """Connections and threads end with the last reference."""
        del self._links

    def _exchange(self, x: Tensor) -> list[Tensor]:
        """Everybody's tensor, by rank."""
        mine = x.contiguous()
        sending = [self._links.send([mine], other, 0) for other in self._others]
        parts = self._receive(mine)
        self._wait(sending)
        return parts

    def _receive(self, mine: Tensor) -> list[Tensor]:
        parts = [mine if rank == self.rank else torch.empty_like(mine) for rank in range(self.size)]
        self._wait([self._links.recv([parts[other]], other, 0) for other in self._others])
        return parts

    @staticmethod
    def _wait(calls: list[Any]) -> None:
        for call in calls:
            call.wait()


class NcclRanks:
    """One GPU each, the current one of the process, which has only one such group."""

    def __init__(self, rank: int, size: int, store: Store) -> None:
        self.rank, self.size = rank, size
        device = torch.device("cuda", torch.cuda.current_device())
        distributed.init_process_group(
            "nccl", store=store, rank=rank, world_size=size, timeout=TIMEOUT, device_id=device)

    def sum(self, x: Tensor) -> Tensor:
        if self.size > 2:
            return add_up(self._all(x))
        total = x.clone()
        distributed.all_reduce(total)
        return total

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._all(x)
        return None if self.rank else torch.cat(parts, dim=-1)

    def broadcast(self, x: Tensor) -> Tensor:
        distributed.broadcast(x, 0)
        return x

    def minimum(self, number: int) -> int:
        least = torch.tensor([number], device="cuda")
        distributed.all_reduce(least, distributed.ReduceOp.MIN)
        return int(least)

    def close(self) -> None:
        distributed.destroy_process_group()

    def _all(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        distributed.all_gather(parts, x.contiguous())
        return parts


Members = Callable[[int, int, Store], Group]

BACKENDS: dict[str, Members] = {
    "gloo": GlooRanks,
    "nccl": NcclRanks,
}


def join(rank: int, size: int, backend: str, meeting_point: str) -> Group:
    """Returns when all ranks are there. The file `meeting_point` must not have served another group."""
    if size == 1:
        return Alone()
    store = FileStore(meeting_point, size)
    store.set_timeout(TIMEOUT)
    return BACKENDS[backend](rank, size, store)


def choose_backend(asked: str, device: str, size: int, num_gpus: int) -> str:
    """The key in BACKENDS; `device` is cpu or cuda, `num_gpus` how many this machine has."""
    fits = device == "cuda" and num_gpus >= size
    if asked == "nccl" and not fits:
        raise ValueError(f"--dist-backend nccl needs a GPU for every shard, there are {num_gpus} for {size} shards on "
                         f"--device {device}; use --dist-backend gloo")
    if asked != "auto":
        return asked
    return "nccl" if fits else "gloo"


def add_up(parts: list[Tensor]) -> Tensor:
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def share(count: int, rank: int, size: int) -> range:
    """A rank's part of so many things that must be shared evenly."""
    if count % size:
        raise ValueError(f"{count} cannot be shared evenly by {size} shards; choose a --num-shard that divides it")
    return range(count // size * rank, count // size * (rank + 1))


def uneven_share(count: int, rank: int, size: int) -> range:
    """A rank's part of so many things that need not go even."""
    return range(count * rank // size, count * (rank + 1) // size)


def padded_share(count: int, rank: int, size: int) -> range:
    """A rank's part when the last ones may be partly, or wholly, beyond what is there. All are of one length."""
    width = -(-count // size)
    return range(width * rank, width * (rank + 1))


def copied_share(count: int, rank: int, size: int) -> range:
    """A rank's part when there may be fewer things than ranks: then neighbours hold copies of one."""
    if count >= size:
        return share(count, rank, size)
    if size % count:
        raise ValueError(f"{count} cannot be copied evenly to {size} shards; choose a --num-shard that it divides")
    return range(rank * count // size, rank * count // size + 1)
