"""How long requests wait from one of their tokens to the next.

Whoever had tokens in the same two steps waited equally long, so a step with the members of the one before costs one
observation, however many they are. Several tokens of one step are one delivery. Without clock: time is an argument.
"""

from collections.abc import Container, KeysView, Sequence

from router.meters import Histogram


class Gaps:
    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._last: KeysView[int] = dict[int, int]().keys()  # who had tokens last
        self._at = 0.0  # when that was
        self._earlier: dict[int, float] = {}  # who had their last before that, and when

    def delivered(self, numbers: KeysView[int], known: Container[int], now: float) -> Sequence[int]:
        """These sequences have tokens now. Returns those for which they are the first."""
        if numbers != self._last:
            return self._changed(numbers, known, now)
        self._histogram.observe(now - self._at, len(numbers))
        self._at = now
        return ()

    def forget(self, number: int) -> None:
        """It is known no more."""
        self._earlier.pop(number, None)

    def _changed(self, numbers: KeysView[int], known: Container[int], now: float) -> Sequence[int]:
        again = numbers & self._last
        self._histogram.observe(now - self._at, len(again))
        first = []
        for number in numbers - again:
            before = self._earlier.pop(number, None)
            if before is None:
                first.append(number)
            else:
                self._histogram.observe(now - before)
        for number in self._last - again:
            if number in known:
                self._earlier[number] = self._at
        self._last, self._at = numbers, now
        return first
