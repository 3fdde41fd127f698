"""Ray Serve's choice of a replica for a request of the ingress, by affinity and load."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from launcher.ray_serve.affinity import AffinityKey, AffinityTable
from launcher.ray_serve.forwarding import ForwardedRequest


class AffinityRouter(RequestRouter):
    """Applies an AffinityTable to the replicas that Ray Serve offers. Every process of the ingress has its own."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._table = AffinityTable()
        self._num_sent = Counter[ReplicaID]()  # by this process, and not completed
        # Of requests that have a replica and are not sent: several are chosen for before the first is sent.
        self._chosen = dict[Any, ReplicaID]()  # by future

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._num_sent[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._num_sent[replica_id] -= 1

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        present = {replica.replica_id for replica in replicas}
        self._num_sent = Counter({name: count for name, count in self._num_sent.items() if name in present})

    async def choose_replicas(self, candidate_replicas: list[RunningReplica],
                              pending_request: PendingRequest | None = None) -> list[list[RunningReplica]]:
        """Return the replica of choice, and behind it the others, of which Ray takes the one with the fewest requests.

        Replicas that report that they are not ready are left out while others are."""
        replicas = [item for item in candidate_replicas if item.routing_stats.get("is_ready", True)]
        by_name = {item.replica_id.unique_id: item for item in replicas or candidate_replicas}
        if not by_name or pending_request is None:
            return [list(by_name.values())]
        pending_request.routing_context.should_backoff = True  # when all replicas are full
        chosen = by_name.pop(self._table.choose(find_affinity_key(pending_request), self._count_requests(by_name)))
        self._note_choice(pending_request, chosen.replica_id)
        return [[chosen], list(by_name.values())]

    def _note_choice(self, request: PendingRequest, replica_id: ReplicaID) -> None:
        """Count a request with its replica until its future is done: Ray sends it then, or its client has left."""
        if request.future not in self._chosen:
            request.future.add_done_callback(self._chosen.pop)
        self._chosen[request.future] = replica_id

    def _count_requests(self, replicas: Mapping[str, RunningReplica]) -> dict[str, int]:
        """Return the requests under way by replica. Ray's count has those of other processes, but only for a while
        after it was heard of."""
        num_chosen = Counter(self._chosen.values())
        return {name: num_chosen[item.replica_id] + max(self.replica_queue_len_cache.get(item.replica_id) or 0,
                                                        self._num_sent[item.replica_id])
                for name, item in replicas.items()}


def find_affinity_key(pending_request: PendingRequest) -> AffinityKey:
    request = pending_request.args[0] if pending_request.args else None
    return request.affinity if isinstance(request, ForwardedRequest) else AffinityKey()
