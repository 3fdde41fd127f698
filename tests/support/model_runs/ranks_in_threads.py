"""Ranks as threads of one process that communicate in plain Python, so that tests can inspect their state."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from shard.parallel.group import sum_in_rank_order


class InProcessExchange:
    """Shared slots for the contribution of each rank, and a barrier."""

    def __init__(self, size: int) -> None:
        self.contributions: list[Any] = [None] * size
        self.barrier = Barrier(size, timeout=60)


class InProcessRankGroup:
    """In-process group of one rank."""

    def __init__(self, rank: int, size: int, shared_exchange: InProcessExchange) -> None:
        self.rank, self.size = rank, size
        self._shared_exchange = shared_exchange

    def _all_gather(self, contribution: Any) -> list[Any]:
        self._shared_exchange.contributions[self.rank] = contribution
        self._shared_exchange.barrier.wait()
        contributions = list(self._shared_exchange.contributions)
        self._shared_exchange.barrier.wait()
        return contributions

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        return sum_in_rank_order(self._all_gather(x.clone())) if self.size > 1 else x

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._all_gather(x)
        return torch.cat(parts, dim=-1) if self.rank == 0 else None

    def broadcast(self, x: Tensor) -> Tensor:
        return x.copy_(self._all_gather(x.clone())[0])

    def all_reduce_min(self, number: int) -> int:
        return min(self._all_gather(number))


def run_on_ranks(size: int, call: Callable[[InProcessRankGroup], Any]) -> list[Any]:
    """Return what `call` returns on every rank."""
    shared_exchange = InProcessExchange(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, [InProcessRankGroup(rank, size, shared_exchange) for rank in range(size)]))
