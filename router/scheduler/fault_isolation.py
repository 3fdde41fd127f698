"""Fault isolation: finds the sequence that makes steps fail, by running suspects apart from others in halved sets.

After a failed step all batches are gone. The first set of suspects then starts alone; its members are cleared by their
next accepted token. When all of a set are cleared, the next set starts beside them; when no set is left, all other
sequences may start.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows
from enum import Enum, auto

from router.scheduler.sequence import Sequence, State

DEATHS_BEFORE_TRIAL, DEATHS_BEFORE_FAILURE = 2, 3


class Loss(Enum):
    """Reason why the shards' state is gone."""

    STEP_ERROR = auto()  # a step raised: one of its sequences may be to blame
    MEMORY = auto()  # out of memory in a step
    DEATH = auto()  # processes exited or are stuck; a sequence in flight at two deaths is suspect; nothing is loaded
    DEFECT = auto()  # a rejected message or an invalid answer: no sequence is to blame


class Trials:
    def __init__(self) -> None:
        self._sets: list[dict[int, Sequence]] = []

    def __bool__(self) -> bool:
        return bool(self._sets)

    def first(self, is_stuck: Callable[[Sequence], bool]) -> Mapping[int, Sequence] | None:
        """Return the suspects that alone may start now, or None if all sequences may.

        A set of which all members are stuck is skipped.
        """
        return next((suspects for suspects in self._sets if not all(map(is_stuck, suspects.values()))), None)

    def clear(self, sequence: Sequence) -> None:
        """Remove one sequence from all sets: it has ended, or will be put into a new set."""
        self.acquit([sequence.number])

    def acquit(self, numbers: Iterable[int]) -> None:
        """Remove sequences from all sets: they produced a token."""
        for number in numbers:
            for suspects in self._sets:
                suspects.pop(number, None)
        self._sets = [suspects for suspects in self._sets if suspects]

    def accuse(self, members: list[Sequence], *, alone: bool) -> Sequence | None:
        """Return the sequence to blame for a failed step if it ran `alone`; otherwise halve the suspects, return None.

        `members` are the unfinished sequences of the step; if some of them are suspects already, only those stay
        suspect.
        """
        if alone and members:
            self.clear(members[0])
            return members[0]
        on_trial = [s for s in members if any(s.number in suspects for suspects in self._sets)]
        suspects = on_trial or members
        half = (len(suspects) + 1) // 2
        self.isolate([suspects[:half], suspects[half:]])
        return None

    def isolate(self, sets: Iterable[list[Sequence]]) -> None:
        """Put these sets of suspects before all others."""
        fresh = [{s.number: s for s in suspects} for suspects in sets if suspects]
        for suspects in fresh:
            for suspect in suspects.values():
                self.clear(suspect)
        self._sets = fresh + self._sets

    def judge(self, loss: Loss, steps: Rows[Rows[Sequence]]) -> list[tuple[Sequence, str]]:
        """Return the sequences that must fail for this loss, each with the reason; isolate other suspects.

        `steps` are the sequences of each step in flight, the oldest step first.
        """
        if loss is Loss.DEATH:
            return self._suspect({s.number: s for step in steps for s in step if s.state is not State.OVER}.values())
        if loss is Loss.STEP_ERROR and steps:
            here = [sequence for sequence in steps[0] if sequence.state is not State.OVER]
            guilty = self.accuse(here, alone=len(steps[0]) == 1)
            return [(guilty, "the step failed with this request alone")] if guilty is not None else []
        return []

    def _suspect(self, members: Iterable[Sequence]) -> list[tuple[Sequence, str]]:
        """Count a death of the shards' processes for each of these sequences.

        Those with DEATHS_BEFORE_TRIAL are isolated, each in a set of its own; those with DEATHS_BEFORE_FAILURE or more
        are returned with the reason.
        """
        members = list(members)
        for sequence in members:
            sequence.num_deaths += 1
        self.isolate([s] for s in members if s.num_deaths == DEATHS_BEFORE_TRIAL)
        return [(s, f"the model's processes died {s.num_deaths} times with this request") for s in members
                if s.num_deaths >= DEATHS_BEFORE_FAILURE]
