"""Lanes of the batch: a place for each running sequence that stays the same while it runs, so that it can be drawn as a
row. The lowest free lane is taken.

Membership follows the messages of the plans, as in the shards: a sequence enters with the step whose message names it,
and leaves with a Filter. So a sequence that has ended may still have its lane in the steps that were in flight then.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from router.scheduler.shard_messages import Concat, Decode, Filter, PoolingStep, Prefill, StepPlan

LaneAndSequence = tuple[int, int]  # lane, sequence id


@dataclass(slots=True)
class LaneChanges:
    """Sequences that a plan's messages move, each with its lane."""

    entered: list[LaneAndSequence] = field(default_factory=list)
    left: list[LaneAndSequence] = field(default_factory=list)


class BatchLanes:
    """Lanes of all sequences in the shards' batches."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with empty batches, as the shards do in a new epoch."""
        self.lane_by_id: dict[int, int] = {}
        self._batch_by_id: dict[int, int] = {}  # of those that a Filter or Concat may name
        self._pooled_ids: list[int] = []  # in the last step, which was one of pooling: they leave with it
        self._free_lanes: list[int] = []  # a heap; of the lanes below `_num_lanes`
        self._num_lanes = 0

    def __len__(self) -> int:
        return len(self.lane_by_id)

    def enter(self, sequence_id: int, batch_id: int | None = None) -> int:
        """Give a sequence a lane, unless it has one, and return the lane. Without a batch no message removes it."""
        if batch_id is not None:
            self._batch_by_id[sequence_id] = batch_id
        lane = self.lane_by_id.get(sequence_id)
        if lane is None:
            if not self._free_lanes:
                heappush(self._free_lanes, self._num_lanes)
                self._num_lanes += 1
            lane = self.lane_by_id[sequence_id] = heappop(self._free_lanes)
        return lane

    def leave(self, sequence_id: int) -> int:
        """Free the lane of a sequence and return it."""
        self._batch_by_id.pop(sequence_id, None)
        lane = self.lane_by_id.pop(sequence_id)
        heappush(self._free_lanes, lane)
        return lane

    def apply(self, plan: StepPlan) -> LaneChanges:
        """Apply the messages of an answered plan. A sequence that leaves and enters again in the same plan, as with
        --recompute, keeps its lane and counts as neither."""
        removed = self._take_pooled() + self._apply_filters(plan)
        new_ids = {new_sequence.sequence_id: None if isinstance(message, PoolingStep) else message.batch
                   for message in plan.messages if isinstance(message, Prefill | PoolingStep)
                   for new_sequence in message.new_sequences}
        changes = LaneChanges()
        changes.left = [(self.leave(sequence_id), sequence_id) for sequence_id in removed if sequence_id not in new_ids]
        for sequence_id, batch_id in new_ids.items():
            is_entering = sequence_id not in self.lane_by_id
            lane = self.enter(sequence_id, batch_id)
            if is_entering:
                changes.entered.append((lane, sequence_id))
            if batch_id is None:
                self._pooled_ids.append(sequence_id)
        return changes

    def _take_pooled(self) -> list[int]:
        pooled, self._pooled_ids = self._pooled_ids, []
        return [sequence_id for sequence_id in pooled if sequence_id in self.lane_by_id]

    def _apply_filters(self, plan: StepPlan) -> list[int]:
        """Apply Filters and Concats; return who was removed, and keeps the lane until then."""
        removed: list[int] = []
        for message in plan.messages:
            if isinstance(message, Concat):
                for sequence_id, batch_id in self._batch_by_id.items():
                    if batch_id in message.batches:
                        self._batch_by_id[sequence_id] = message.batches[0]
            elif isinstance(message, Filter | Prefill | Decode) and message.keep is not None:
                removed += self._remove_from_batch(message.batch, message.keep)
        return removed

    def _remove_from_batch(self, batch_id: int, kept_ids: Iterable[int]) -> list[int]:
        kept = set(kept_ids)
        removed = [sequence_id for sequence_id, batch in self._batch_by_id.items()
                   if batch == batch_id and sequence_id not in kept]
        for sequence_id in removed:
            del self._batch_by_id[sequence_id]
        return removed
