"""Warm-up of an encoder: texts of growing size are run and timed, so that the router can predict how long a step takes.

As in `decoder_profiler.py` sizes grow, up to the largest step that the limits allow, or on a CPU until a step takes
long enough to predict larger ones.
"""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from shard.parallel.group import RankGroup
from shard.state.pooling_text import PoolingText
from shard.workers.step_measurements import (
    MAX_REPEATED_SECONDS,
    SHORT_CONTEXT_TOKENS,
    MaxStepSizes,
    StepMeasurement,
    iter_growing_sizes,
)

MIN_TEXT_TOKENS = 16  # tokens of the shortest of the growing texts


class EncoderStepProfiler:
    """Runs and times texts of growing size; the router predicts the time of steps from the measurements."""

    def __init__(self, run_texts: Callable[[Sequence[PoolingText]], object], max_sizes: MaxStepSizes, group: RankGroup,
                 slow_step_seconds: float) -> None:
        """Create a warm-up. `run_texts` runs a step. Once one takes `slow_step_seconds`, no larger one of its kind is
        run."""
        self._run_texts = run_texts
        self._max_sizes = max_sizes
        self._group = group
        self._slow_step_seconds = slow_step_seconds

    def measure_steps(self) -> list[StepMeasurement]:
        return [measurement for series in self._make_step_series() for measurement in self._measure_series(series)]

    def _make_step_series(self) -> list[Iterator[list[PoolingText]]]:
        """Return the steps of each kind: one text that grows, a growing number of short texts."""
        max_sizes = self._max_sizes
        longest = min(max_sizes.max_sequence_length, max_sizes.max_chunk_tokens)
        short_length = min(SHORT_CONTEXT_TOKENS, longest)
        max_texts = min(max_sizes.max_rows, max_sizes.max_chunk_tokens // short_length)
        return [
            ([PoolingText([0] * length)] for length in iter_growing_sizes(min(MIN_TEXT_TOKENS, longest), longest)),
            ([PoolingText([0] * short_length)] * count for count in iter_growing_sizes(min(2, max_texts), max_texts)),
        ]

    def _measure_series(self, series: Iterator[list[PoolingText]]) -> Iterator[StepMeasurement]:
        for number, texts in enumerate(series):
            seconds = self._time_step(texts)
            if seconds <= MAX_REPEATED_SECONDS:
                seconds = min(seconds, self._time_step(texts))  # the first run may have had to set things up
            num_tokens = sum(len(text.tokens) for text in texts)
            yield StepMeasurement(len(texts), num_tokens, num_tokens, seconds)
            if seconds > self._slow_step_seconds and number:  # one size alone gives no slope
                return

    def _time_step(self, texts: list[PoolingText]) -> float:
        """Return the time of the slowest rank, so that all ranks continue or stop alike."""
        started_at = perf_counter()
        self._run_texts(texts)
        return -self._group.all_reduce_min(-round(1e9 * (perf_counter() - started_at))) / 1e9
