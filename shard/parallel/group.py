"""The group of ranks that share a model: sums, gathers and broadcasts between them.

Everything is added in rank order, so that all ranks hold the same bits and a rerun gives them again. All ranks run on
one machine and meet at a file that is new for every group. Detecting a rank that hangs is left to others: a call that
waits longer than TIMEOUT raises only as a last resort.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor, distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its list

from shard.parallel.shared_memory import Exchange

TIMEOUT = timedelta(minutes=10)


class Group(Protocol):
    """Group of ranks, which all make the same calls in the same order, with tensors of the same shapes."""

    rank: int
    size: int

    def sum(self, x: Tensor) -> Tensor:
        """Return the ranks' partial results, added in rank order."""

    def gather(self, x: Tensor) -> Tensor | None:
        """Return the ranks' parts concatenated along the last axis on rank 0, None on the others."""

    def broadcast(self, x: Tensor) -> Tensor:
        """Overwrite `x` with rank 0's values and return it."""

    def minimum(self, number: int) -> int:
        """Return the least of the ranks' numbers, once every rank has called."""

    def close(self) -> None: ...


class Alone:
    """Group of one rank."""

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
    """Group over shared memory: each rank adds all parts by itself. GPU tensors are copied through host memory."""

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
    """Group over NCCL: one GPU per rank, the current one of the process, which can have only one such group."""

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
    """Join the group and return when all ranks have. No other group may have used the file `meeting_point`."""
    return Alone() if size == 1 else BACKENDS[backend](rank, size, meeting_point)


def choose_backend(asked: str, device: str, size: int, num_gpus: int) -> str:
    """Return the key in BACKENDS; `device` is cpu or cuda, `num_gpus` the number of GPUs of this machine."""
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
    """Return a rank's part of `count` items that must be shared evenly."""
    if count % size:
        raise ValueError(f"{count} cannot be shared evenly by {size} shards; choose a --num-shard that divides it")
    return range(count // size * rank, count // size * (rank + 1))


def uneven_share(count: int, rank: int, size: int) -> range:
    """Return a rank's part of `count` items that need not be shared evenly."""
    return range(count * rank // size, count * (rank + 1) // size)


def padded_share(count: int, rank: int, size: int) -> range:
    """Return a rank's part of `count` items. All parts have one length; the last ones may be partly or wholly past the
    end."""
    width = -(-count // size)
    return range(width * rank, width * (rank + 1))


def copied_share(count: int, rank: int, size: int) -> range:
    """Return a rank's part of `count` items. If there are fewer items than ranks, neighbours hold copies of one."""
    if count >= size:
        return share(count, rank, size)
    if size % count:
        raise ValueError(f"{count} cannot be copied evenly to {size} shards; choose a --num-shard that it divides")
    return range(rank * count // size, rank * count // size + 1)
