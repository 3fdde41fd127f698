"""Who is to blame when a step fails: sequences that are tried again apart from the others, in smaller and smaller sets.

After a failed step all batches are gone. The first set on trial then enters alone; a member is cleared by its next
accepted token. When all of a set are cleared the next set enters beside them; when none is left everybody may.
Knows nothing of why the step failed.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows
from enum import Enum, auto

from router.sequence import Sequence, State

DEATHS_BEFORE_TRIAL, DEATHS_BEFORE_FAILURE = 2, 3


class Loss(Enum):
    """Why the shards' state is gone."""

    STEP_ERROR = auto()  # a step raised: one of its sequences may be to blame
    MEMORY = auto()  # there was none for a step
    DEATH = auto()  # the processes ended or hung: whoever was under way twice is suspect, and nothing is loaded
    DEFECT = auto()  # a refusal or an answer that makes no sense: no sequence's fault


class Trials:
    def __init__(self) -> None:
        self._sets: list[dict[int, Sequence]] = []

    def __bool__(self) -> bool:
        return bool(self._sets)

    def first(self, is_stuck: Callable[[Sequence], bool]) -> Mapping[int, Sequence] | None:
        """Who alone may start now; None when everybody may. A set of which all are stuck lets others go before it."""
        return next((suspects for suspects in self._sets if not all(map(is_stuck, suspects.values()))), None)

    def clear(self, sequence: Sequence) -> None:
        """It is gone, or accused anew."""
        self.acquit([sequence.number])

    def acquit(self, numbers: Iterable[int]) -> None:
        """These are innocent: they have another token."""
        for number in numbers:
            for suspects in self._sets:
                suspects.pop(number, None)
        self._sets = [suspects for suspects in self._sets if suspects]

    def accuse(self, members: list[Sequence], *, alone: bool) -> Sequence | None:
        """A step failed, and these of its members are still here. Returns the guilty one, which was `alone` in the
        step, or arranges the next trials."""
        if alone and members:
            self.clear(members[0])
            return members[0]
        on_trial = [s for s in members if any(s.number in suspects for suspects in self._sets)]
        suspects = on_trial or members
        half = (len(suspects) + 1) // 2
        self.isolate([suspects[:half], suspects[half:]])
        return None

    def isolate(self, sets: Iterable[list[Sequence]]) -> None:
        """Try these sets before all others."""
        fresh = [{s.number: s for s in suspects} for suspects in sets if suspects]
        for suspects in fresh:
            for suspect in suspects.values():
                self.clear(suspect)
        self._sets = fresh + self._sets

    def judge(self, loss: Loss, steps: Rows[Rows[Sequence]]) -> list[tuple[Sequence, str]]:
        """Who fails for it, and why, of those who took part in the steps under way, the oldest first. Others that may
        be to blame are tried apart."""
        if loss is Loss.DEATH:
            return self._suspect({s.number: s for step in steps for s in step if s.state is not State.OVER}.values())
        if loss is Loss.STEP_ERROR and steps:
            here = [sequence for sequence in steps[0] if sequence.state is not State.OVER]
            guilty = self.accuse(here, alone=len(steps[0]) == 1)
            return [(guilty, "the step failed with this request alone")] if guilty is not None else []
        return []

    def _suspect(self, members: Iterable[Sequence]) -> list[tuple[Sequence, str]]:
        """The processes died with these under way."""
        members = list(members)
        for sequence in members:
            sequence.num_deaths += 1
        self.isolate([s] for s in members if s.num_deaths == DEATHS_BEFORE_TRIAL)
        return [(s, f"the model's processes died {s.num_deaths} times with this request") for s in members
                if s.num_deaths >= DEATHS_BEFORE_FAILURE]
