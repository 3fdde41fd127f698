"""Ranks as threads of one process that communicate in plain Python, so that tests can inspect their state."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from shard.parallel.group import add_up


class Table:
    """Shared slots for the contribution of each rank, and a barrier."""

    def __init__(self, size: int) -> None:
        self.laid: list[Any] = [None] * size
        self.barrier = Barrier(size, timeout=60)


class Neighbour:
    """In-process group of one rank."""

    def __init__(self, rank: int, size: int, table: Table) -> None:
        self.rank, self.size = rank, size
        self._table = table

    def _exchange(self, mine: Any) -> list[Any]:
        self._table.laid[self.rank] = mine
        self._table.barrier.wait()
        laid = list(self._table.laid)
        self._table.barrier.wait()
        return laid

    def sum(self, x: Tensor) -> Tensor:
        return add_up(self._exchange(x.clone())) if self.size > 1 else x

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._exchange(x)
        return torch.cat(parts, dim=-1) if self.rank == 0 else None

    def broadcast(self, x: Tensor) -> Tensor:
        return x.copy_(self._exchange(x.clone())[0])

    def minimum(self, number: int) -> int:
        return min(self._exchange(number))

    def close(self) -> None:
        pass


def side_by_side(size: int, call: Callable[[Neighbour], Any]) -> list[Any]:
    """Return what `call` returns on every rank."""
    table = Table(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, [Neighbour(rank, size, table) for rank in range(size)]))
