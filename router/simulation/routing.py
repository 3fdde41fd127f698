"""Routing of requests to replicas, as balancers do it: `--route` of `weft simulate`. A policy sees the request and how
many unfinished requests each replica has, which a balancer counts by itself, and nothing else of the replicas."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from router.request import Request

# Most unfinished requests of a replica that affinity may choose, relative to the mean of all.
MAX_RELATIVE_LOAD = 1.25
MAX_RANKED_ADAPTERS = 1_024  # whose order of replicas is remembered


class RoutingPolicy:
    """Base class of routing policies: chooses a replica for each request. No clock, chance or I/O."""

    def __init__(self, num_replicas: int, max_known_blocks: int) -> None:
        """`max_known_blocks` is how many blocks of prompts a policy may remember of each replica."""
        self._num_replicas = num_replicas
        self._max_known_blocks = max_known_blocks
        self._last_choice = num_replicas - 1

    def choose(self, request: Request, loads: Sequence[int]) -> int:
        """Return the index of the replica for this request. `loads` are the unfinished requests of each."""
        self._last_choice = self._choose(request, loads)
        return self._last_choice

    def _choose(self, request: Request, loads: Sequence[int]) -> int:
        raise NotImplementedError

    def _list_in_turn(self) -> list[int]:
        """Return all replicas, beginning behind the one that was chosen last."""
        return [(self._last_choice + 1 + offset) % self._num_replicas for offset in range(self._num_replicas)]

    def _choose_least_loaded(self, loads: Sequence[int]) -> int:
        return min(self._list_in_turn(), key=loads.__getitem__)


class RoundRobin(RoutingPolicy):
    """One replica after the other, as nginx does by default."""

    def _choose(self, request: Request, loads: Sequence[int]) -> int:  # noqa: ARG002 - part of the interface
        return self._list_in_turn()[0]


class LeastLoaded(RoutingPolicy):
    """The replica with the fewest unfinished requests, as nginx's `least_conn`; of equal ones the next in turn."""

    def _choose(self, request: Request, loads: Sequence[int]) -> int:  # noqa: ARG002 - part of the interface
        return self._choose_least_loaded(loads)


class PrefixAffinity(RoutingPolicy):
    """The replica that was sent the longest prefix of the prompt's blocks, unless it is too full; without one the least
    loaded. Cache-aware routers, such as vLLM's and llm-d's, remember the same."""

    def __init__(self, num_replicas: int, max_known_blocks: int) -> None:
        super().__init__(num_replicas, max_known_blocks)
        self._known_blocks = [OrderedDict[bytes, None]() for _ in range(num_replicas)]  # least recently sent first

    def _choose(self, request: Request, loads: Sequence[int]) -> int:
        limit = compute_load_limit(loads)
        num_known = [self._count_known_blocks(replica, request) for replica in range(self._num_replicas)]
        candidates = [replica for replica in self._list_in_turn() if num_known[replica] and loads[replica] < limit]
        chosen = (max(candidates, key=lambda replica: (num_known[replica], -loads[replica])) if candidates
                  else self._choose_least_loaded(loads))
        self._remember_blocks(chosen, request)
        return chosen

    def _count_known_blocks(self, replica: int, request: Request) -> int:
        known = self._known_blocks[replica]
        return next((index for index, name in enumerate(request.block_hashes) if name not in known),
                    len(request.block_hashes))

    def _remember_blocks(self, replica: int, request: Request) -> None:
        known = self._known_blocks[replica]
        for name in reversed(request.block_hashes):  # the first blocks, which others share, are forgotten last
            known[name] = None
            known.move_to_end(name)
        while len(known) > self._max_known_blocks:
            known.popitem(last=False)


class AdapterAffinity(RoutingPolicy):
    """A replica of its own for each adapter, by rendezvous hashing; a full one passes requests on to the adapter's
    next. Without an adapter the least loaded."""

    def _choose(self, request: Request, loads: Sequence[int]) -> int:
        if request.adapter is None:
            return self._choose_least_loaded(loads)
        limit, adapter = compute_load_limit(loads), request.adapter.id
        return next(replica for replica in rank_replicas(adapter, self._num_replicas) if loads[replica] < limit)


@lru_cache(maxsize=MAX_RANKED_ADAPTERS)
def rank_replicas(adapter: int, num_replicas: int) -> tuple[int, ...]:
    """Return the replicas in the adapter's order, which is the same in every process."""
    return tuple(sorted(range(num_replicas), key=lambda replica: sha256(f"{adapter} {replica}".encode()).digest()))


def compute_load_limit(loads: Sequence[int]) -> int:
    """Return how many unfinished requests a replica must be below to be chosen by affinity; the least loaded is."""
    return math.ceil(MAX_RELATIVE_LOAD * (sum(loads) + 1) / len(loads))


ROUTING_POLICIES: dict[str, type[RoutingPolicy]] = {
    "round-robin": RoundRobin, "least": LeastLoaded, "prefix": PrefixAffinity, "adapter": AdapterAffinity}
