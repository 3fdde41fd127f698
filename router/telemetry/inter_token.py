"""Inter-token latency: the time between two deliveries of tokens to the same request.

Sequences that got tokens in the same two steps waited equally long, so a step with the same members as the one before
costs one observation, however many members there are. Several tokens of one step are one delivery. Time is an argument.
"""

from collections.abc import Container, KeysView, Sequence

from router.telemetry.instruments import Histogram


class InterTokenLatency:
    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._last_sequence_numbers: KeysView[int] = dict[int, int]().keys()  # sequences of the last delivery
        self._last_delivery_at = 0.0  # time of the last delivery
        # other sequences that have tokens, with the time of their last delivery
        self._earlier_delivery_times: dict[int, float] = {}

    def observe_token_delivery(self, sequence_numbers: KeysView[int], unfinished_numbers: Container[int],
                               now: float) -> Sequence[int]:
        """Observe a delivery of tokens to these sequences; return the sequences that got their first tokens."""
        if sequence_numbers != self._last_sequence_numbers:
            return self._observe_changed_sequences(sequence_numbers, unfinished_numbers, now)
        self._histogram.observe(now - self._last_delivery_at, len(sequence_numbers))
        self._last_delivery_at = now
        return ()

    def remove_sequence(self, sequence_number: int) -> None:
        """Drop a sequence that has ended."""
        self._earlier_delivery_times.pop(sequence_number, None)

    def _observe_changed_sequences(self, sequence_numbers: KeysView[int], unfinished_numbers: Container[int],
                                   now: float) -> Sequence[int]:
        repeated_numbers = sequence_numbers & self._last_sequence_numbers
        self._histogram.observe(now - self._last_delivery_at, len(repeated_numbers))
        first_token_numbers = []
        for sequence_number in sequence_numbers - repeated_numbers:
            last_delivery_at = self._earlier_delivery_times.pop(sequence_number, None)
            if last_delivery_at is None:
                first_token_numbers.append(sequence_number)
            else:
                self._histogram.observe(now - last_delivery_at)
        for sequence_number in self._last_sequence_numbers - repeated_numbers:
            if sequence_number in unfinished_numbers:
                self._earlier_delivery_times[sequence_number] = self._last_delivery_at
        self._last_sequence_numbers, self._last_delivery_at = sequence_numbers, now
        return first_token_numbers
