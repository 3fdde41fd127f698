"""The ranks that share a model, as one group: sums, gathers and broadcasts between them.

Everything is added in rank order, so that all ranks hold the same bits and a rerun gives them again. All ranks live on
one machine and meet at a file that is new for every group. Knows nothing of what is exchanged. Whether a rank hangs is
for others to judge: a call that waits longer than TIMEOUT raises only for want of a better judge.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor, distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its list

from shard.exchange import Exchange

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


class HostRanks:
    """Everybody lays down what it has and adds by itself. Tensors of a GPU travel through the host's memory."""

    def __init__(self, rank: int, size: int, meeting_point: str) -> None:
        self.rank, self.size = rank, size
        self._exchange = Exchange(rank, size, meeting_point, TIMEOUT.total_seconds())

    def sum(self, x: Tensor) -> Tensor:
        return joined([add_up(parts) for parts in self._exchange.parts(x.cpu())]).view(x.shape).to(x.device)

    def gather(self, x: Tensor) -> Tensor | None:
        wanted = 0 if self.rank else self.size
        pieces = [[part.clone() for part in parts[:wanted]] for parts in self._exchange.parts(x.cpu())]
        if self.rank:
            return None
        return torch.cat([joined(part).view(x.shape) for part in zip(*pieces, strict=True)], dim=-1).to(x.device)

    def broadcast(self, x: Tensor) -> Tensor:
        wanted = 1 if self.rank else 0
        pieces = [part.clone() for parts in self._exchange.parts(x.cpu()) for part in parts[:wanted]]
        return x.copy_(joined(pieces).view(x.shape)) if self.rank else x

    def minimum(self, number: int) -> int:
        [parts] = self._exchange.parts(torch.tensor([number]))
        return min(int(part) for part in parts)

    def close(self) -> None:
        self._exchange.close()


class NcclRanks:
    """One GPU each, the current one of the process, which has only one such group."""

    def __init__(self, rank: int, size: int, meeting_point: str) -> None:
        self.rank, self.size = rank, size
        store = FileStore(meeting_point, size)
        store.set_timeout(TIMEOUT)
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


Members = Callable[[int, int, str], Group]

BACKENDS: dict[str, Members] = {
    "memory": HostRanks,
    "nccl": NcclRanks,
}


def join(rank: int, size: int, backend: str, meeting_point: str) -> Group:
    """Returns when all ranks are there. The file `meeting_point` must not have served another group."""
    return Alone() if size == 1 else BACKENDS[backend](rank, size, meeting_point)


def choose_backend(asked: str, device: str, size: int, num_gpus: int) -> str:
    """The key in BACKENDS; `device` is cpu or cuda, `num_gpus` how many this machine has."""
    fits = device == "cuda" and num_gpus >= size
    if asked == "nccl" and not fits:
        raise ValueError(f"--dist-backend nccl needs a GPU for every shard, there are {num_gpus} for {size} shards on "
                         f"--device {device}; use --dist-backend memory")
    if asked != "auto":
        return asked
    return "nccl" if fits else "memory"


def add_up(parts: list[Tensor]) -> Tensor:
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def joined(pieces: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


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
