"""Inter-token latency: the time between two deliveries of tokens to the same request.

Sequences that got tokens in the same two steps waited equally long, so a step with the same members as the one before
costs one observation, however many members there are. Several tokens of one step are one delivery. Time is an argument.
"""

from collections.abc import Container, KeysView, Sequence

from router.telemetry.instruments import Histogram


class Gaps:
    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._last: KeysView[int] = dict[int, int]().keys()  # sequences of the last delivery
        self._at = 0.0  # time of the last delivery
        self._earlier: dict[int, float] = {}  # other sequences that have tokens, with the time of their last delivery

    def delivered(self, numbers: KeysView[int], known: Container[int], now: float) -> Sequence[int]:
        """Observe a delivery of tokens to these sequences; return the sequences that got their first tokens."""
        if numbers != self._last:
            return self._changed(numbers, known, now)
        self._histogram.observe(now - self._at, len(numbers))
        self._at = now
        return ()

    def forget(self, number: int) -> None:
        """Drop a sequence that has ended."""
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
