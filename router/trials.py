"""Who is to blame when a step fails: sequences that are tried again apart from the others, in smaller and smaller sets.

After a failed step all batches are gone. The first set on trial then enters alone; a member is cleared by its next
accepted token. When all of a set are cleared the next set enters beside them; when none is left everybody may.
Knows nothing of why the step failed.
"""

from collections.abc import Callable, Iterable, Mapping

from router.sequence import Sequence


class Trials:
    def __init__(self) -> None:
        self._sets: list[dict[int, Sequence]] = []

    def __bool__(self) -> bool:
        return bool(self._sets)

    def first(self, is_stuck: Callable[[Sequence], bool]) -> Mapping[int, Sequence] | None:
        """Who alone may start now; None when everybody may. A set of which all are stuck lets others go before it."""
        return next((suspects for suspects in self._sets if not all(map(is_stuck, suspects.values()))), None)

    def clear(self, sequence: Sequence) -> None:
        """It is innocent, or gone."""
        for suspects in self._sets:
            suspects.pop(sequence.number, None)
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
