"""Warm-up of an encoder: texts that are run and timed before anything is served.

As in `warmup.py` sizes grow, up to the largest step that the limits allow, or on a CPU until a step takes long enough
to predict larger ones.
"""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from shard.parallel.group import Group
from shard.state.columns import Text
from shard.workers.warmup import BRIEF, SHORT, Measured, Sizes, growing

FIRST = 16  # tokens of the shortest of the growing texts


class TextRehearsal:
    def __init__(self, run: Callable[[Sequence[Text]], object], sizes: Sizes, group: Group, patience: float) -> None:
        """Create a warm-up. `run` runs a step; `patience` is in seconds."""
        self._run = run
        self._sizes = sizes
        self._group = group
        self._patience = patience

    def measure(self) -> list[Measured]:
        return [one for kind in self._kinds() for one in self._measure(kind)]

    def _kinds(self) -> list[Iterator[list[Text]]]:
        """Return the steps of each kind: one text that grows, a growing number of short texts."""
        sizes = self._sizes
        longest = min(sizes.length, sizes.chunk_tokens)
        short = min(SHORT, longest)
        most = min(sizes.rows, sizes.chunk_tokens // short)
        return [
            ([Text([0] * length)] for length in growing(min(FIRST, longest), longest)),
            ([Text([0] * short)] * count for count in growing(min(2, most), most)),
        ]

    def _measure(self, kind: Iterator[list[Text]]) -> Iterator[Measured]:
        for number, texts in enumerate(kind):
            seconds = self._time(texts)
            if seconds <= BRIEF:
                seconds = min(seconds, self._time(texts))  # the first run may have had to set things up
            num_tokens = sum(len(text.tokens) for text in texts)
            yield Measured(len(texts), num_tokens, num_tokens, seconds)
            if seconds > self._patience and number:  # one size alone gives no slope
                return

    def _time(self, texts: list[Text]) -> float:
        """Return the time of the slowest rank, so that all ranks continue or stop alike."""
        began = perf_counter()
        self._run(texts)
        return -self._group.minimum(-round(1e9 * (perf_counter() - began))) / 1e9
