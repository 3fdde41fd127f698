"""Ranks that are threads of one process, without sockets between them: what they say to each other is looked at in
`tests/shard/test_distributed.py`, and by every server with several shards."""

from threading import Barrier, Lock
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # not in its list

from shard.distributed import TIMEOUT, add_up


class Meeting:
    """Where ranks put down what they have. Nobody goes on before all have, so nobody is two exchanges ahead of another,
    and two places each are enough."""

    def __init__(self, size: int) -> None:
        self.places: list[list[Tensor]] = [[torch.empty(0)] * size for _ in range(2)]
        self.all_there = Barrier(size, timeout=TIMEOUT.total_seconds())


class NearRanks:
    _meetings: ClassVar[dict[str, tuple[Meeting, int]]] = {}  # and how many came, by the file where they would have met
    _lock = Lock()

    def __init__(self, rank: int, size: int, store: Store) -> None:
        self.rank, self.size = rank, size
        self._turn = 0
        self._meeting = self._found(store.path, size)
        self._meeting.all_there.wait()

    @classmethod
    def _found(cls, path: str, size: int) -> Meeting:
        with cls._lock:
            meeting, came = cls._meetings.pop(path, (Meeting(size), 0))
            if came + 1 < size:
                cls._meetings[path] = meeting, came + 1
            return meeting

    def sum(self, x: Tensor) -> Tensor:
        return add_up(self._exchange(x))

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._exchange(x)
        return None if self.rank else torch.cat(parts, dim=-1)

    def broadcast(self, x: Tensor) -> Tensor:
        first = self._exchange(x)[0]
        return x.copy_(first) if self.rank else x

    def minimum(self, number: int) -> int:
        return min(int(part) for part in self._exchange(torch.tensor([number])))

    def close(self) -> None:
        """Whoever waits for this rank hears that it is gone."""
        self._meeting.all_there.abort()

    def _exchange(self, x: Tensor) -> list[Tensor]:
        """Everybody's tensor, by rank."""
        places = self._meeting.places[self._turn]
        self._turn = 1 - self._turn
        places[self.rank] = x.clone()
        self._meeting.all_there.wait()
        return list(places)
