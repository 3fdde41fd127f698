"""Fault isolation: finds the sequence that makes steps fail, by running suspects apart from others in halved sets.

After a failed step all batches are gone. The first set of suspects then starts alone; its members are cleared by their
next accepted token. When all of a set are cleared, the next set starts beside them; when no set is left, all other
sequences may start.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field
from enum import Enum, auto

from router.scheduler.sequence import Sequence, SequenceState

DEATHS_BEFORE_ISOLATION, DEATHS_BEFORE_FAILURE = 2, 3


class ShardLossReason(Enum):
    """Reason why the shards' state is gone."""

    STEP_ERROR = auto()  # a step raised: one of its sequences may be to blame
    MEMORY = auto()  # out of memory in a step
    DEATH = auto()  # processes exited or are stuck; a sequence in flight at two deaths is suspect; nothing is loaded
    DEFECT = auto()  # a rejected message or an invalid answer: no sequence is to blame


@dataclass(slots=True, eq=False)
class FaultIsolation:
    """Sets of sequences suspected of making steps fail. The first runs alone until it is cleared or a culprit found."""

    suspect_sets: list[dict[int, Sequence]] = field(default_factory=list)

    def suspects_allowed_to_start(self, cannot_start_even_with_room: Callable[[Sequence], bool]
                                  ) -> Mapping[int, Sequence] | None:
        """Return the suspects that alone may start now, or None if all sequences may.

        A set of which no member may start (`cannot_start_even_with_room`) is skipped.
        """
        return next((suspects for suspects in self.suspect_sets
                     if not all(map(cannot_start_even_with_room, suspects.values()))), None)

    def clear_suspicions(self, sequence_ids: Iterable[int]) -> None:
        """Remove sequences from all sets: they produced a token, have ended, or will be put into a new set."""
        for sequence_id in sequence_ids:
            for suspects in self.suspect_sets:
                suspects.pop(sequence_id, None)
        self.suspect_sets = [suspects for suspects in self.suspect_sets if suspects]

    def bisect_suspects(self, members: list[Sequence], *, ran_alone: bool) -> Sequence | None:
        """Return the sequence to blame for a failed step if it ran alone; otherwise halve the suspects, return None.

        `members` are the unfinished sequences of the step; if some of them are suspects already, only those stay
        suspect.
        """
        if ran_alone and members:
            self.clear_suspicions([members[0].id])
            return members[0]
        known_suspects = [s for s in members if any(s.id in suspects for suspects in self.suspect_sets)]
        suspects = known_suspects or members
        half = (len(suspects) + 1) // 2
        self.isolate_suspects([suspects[:half], suspects[half:]])
        return None

    def isolate_suspects(self, suspect_sets: Iterable[list[Sequence]]) -> None:
        """Put these sets of suspects before all others."""
        new_sets = [{s.id: s for s in suspects} for suspects in suspect_sets if suspects]
        for suspects in new_sets:
            self.clear_suspicions(suspects)
        self.suspect_sets = new_sets + self.suspect_sets

    def assign_blame(self, loss_reason: ShardLossReason,
                     steps: GenericSequence[GenericSequence[Sequence]]) -> list[tuple[Sequence, str]]:
        """Return the sequences that must fail for this loss, each with the reason; isolate other suspects.

        `steps` are the sequences of each step in flight, the oldest step first.
        """
        unfinished = [[s for s in step if s.state is not SequenceState.FINISHED] for step in steps]
        if loss_reason is ShardLossReason.DEATH:
            # A sequence with DEATHS_BEFORE_ISOLATION gets a set of its own, with DEATHS_BEFORE_FAILURE it fails.
            members = {s.id: s for step in unfinished for s in step}.values()
            for sequence in members:
                sequence.num_shard_deaths += 1
            self.isolate_suspects([s] for s in members if s.num_shard_deaths == DEATHS_BEFORE_ISOLATION)
            return [(s, f"the model's processes died {s.num_shard_deaths} times with this request") for s in members
                    if s.num_shard_deaths >= DEATHS_BEFORE_FAILURE]
        if loss_reason is ShardLossReason.STEP_ERROR and steps:
            culprit = self.bisect_suspects(unfinished[0], ran_alone=len(steps[0]) == 1)
            return [(culprit, "the step failed with this request alone")] if culprit is not None else []
        return []
