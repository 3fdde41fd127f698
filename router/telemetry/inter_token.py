"""Inter-token latency: the time between two deliveries of tokens to the same request.

Sequences that got tokens in the same two steps waited equally long, so a step with the same members as the one before
costs one observation, however many members there are. Several tokens of one step are one delivery. Time is an argument.
"""

from collections.abc import Container, KeysView, Sequence

from router.telemetry.instruments import Histogram


class InterTokenLatency:
    """Observes the time between two deliveries of tokens to the same sequence, with one observation for all members of
    an unchanged step.
    """

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._last_sequence_ids: KeysView[int] = dict[int, int]().keys()  # sequences of the last delivery
        self._last_delivery_at = 0.0  # time of the last delivery
        # other sequences that have tokens, with the time of their last delivery
        self._earlier_delivery_times: dict[int, float] = {}

    def record_delivery(self, sequence_ids: KeysView[int], unfinished_ids: Container[int],
                        now: float) -> Sequence[int]:
        """Observe a delivery of tokens to these sequences; return the sequences that got their first tokens."""
        if sequence_ids != self._last_sequence_ids:
            return self._observe_changed_sequences(sequence_ids, unfinished_ids, now)
        self._histogram.observe(now - self._last_delivery_at, len(sequence_ids))
        self._last_delivery_at = now
        return ()

    def remove_sequence(self, sequence_id: int) -> None:
        """Drop a sequence that has ended."""
        self._earlier_delivery_times.pop(sequence_id, None)

    def _observe_changed_sequences(self, sequence_ids: KeysView[int], unfinished_ids: Container[int],
                                   now: float) -> Sequence[int]:
        repeated_ids = sequence_ids & self._last_sequence_ids
        self._histogram.observe(now - self._last_delivery_at, len(repeated_ids))
        first_token_ids = []
        for sequence_id in sequence_ids - repeated_ids:
            last_delivery_at = self._earlier_delivery_times.pop(sequence_id, None)
            if last_delivery_at is None:
                first_token_ids.append(sequence_id)
            else:
                self._histogram.observe(now - last_delivery_at)
        for sequence_id in self._last_sequence_ids - repeated_ids:
            if sequence_id in unfinished_ids:
                self._earlier_delivery_times[sequence_id] = self._last_delivery_at
        self._last_sequence_ids, self._last_delivery_at = sequence_ids, now
        return first_token_ids
