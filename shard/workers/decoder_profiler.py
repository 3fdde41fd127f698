"""Warm-up of a decoder: steps that are run and timed before anything is served.

Sizes grow, kind by kind, up to the largest that the limits allow; on a CPU, where a large step takes many seconds and
its memory need not be measured, only until a step takes long enough to predict larger ones. Nothing is served
meanwhile, so all sequences of the warm-up share the cache's first blocks.
"""

from collections.abc import Iterator
from math import inf
from time import perf_counter

from shard.attention.kv_cache import KVCache
from shard.parallel.group import RankGroup
from shard.runner.model_runner import ModelRunner
from shard.state.sequence import SamplingParams, Sequence
from shard.state.step import PrefillChunk, Step
from shard.workers.step_measurements import (
    MAX_REPEATED_SECONDS,
    SHORT_CONTEXT_TOKENS,
    MaxStepSizes,
    StepMeasurement,
    iter_growing_sizes,
)

WARMUP_SAMPLING_PARAMS = SamplingParams(temperature=1.0, top_p=0.9)


class DecoderStepProfiler:
    """Runs and times decodes and chunks of growing size. The router predicts the time of steps from the measurements;
    on a GPU the largest step also shows how much memory a step needs.
    """

    def __init__(self, runner: ModelRunner, cache: KVCache, max_sizes: MaxStepSizes, group: RankGroup,
                 slow_step_seconds: float) -> None:
        self._runner = runner
        self._cache = cache
        self._max_sizes = max_sizes
        self._group = group
        self._slow_step_seconds = slow_step_seconds

    def measure_steps(self) -> list[StepMeasurement]:
        return [measurement for series in self._make_step_series() for measurement in self._measure_series(series)]

    def run_largest_step(self) -> None:
        self._runner.run(self._make_last_chunk_step(self._max_sizes.max_chunk_tokens, self._max_sizes.max_rows),
                         self._cache)

    def _make_step_series(self) -> list[Iterator[Step]]:
        """Return the steps of each kind: a growing number of decodes, one decode that grows, one chunk that grows."""
        max_sizes = self._max_sizes
        return [
            (self._make_decode_step(count, SHORT_CONTEXT_TOKENS)
             for count in iter_growing_sizes(1, max_sizes.max_rows)),
            (self._make_decode_step(1, length)
             for length in iter_growing_sizes(8 * SHORT_CONTEXT_TOKENS, max_sizes.max_sequence_length)),
            (self._make_chunk_step(tokens, 0) for tokens in iter_growing_sizes(16, max_sizes.max_chunk_tokens)),
        ]

    def _measure_series(self, series: Iterator[Step]) -> Iterator[StepMeasurement]:
        for number, step in enumerate(series):
            seconds = self._time_step(step)
            # where all sizes are run, kernels are compiled on the way
            if seconds <= MAX_REPEATED_SECONDS or self._slow_step_seconds == inf:
                seconds = min(seconds, self._time_step(step))  # the first run may have had to set things up
            rows = len(step.decodes) + len(step.chunks)
            context = sum(len(sequence.tokens) for sequence in step.sequences)
            yield StepMeasurement(rows, sum(chunk.length for chunk in step.chunks), context, seconds)
            if seconds > self._slow_step_seconds and number:  # one size alone gives no slope
                return

    def _time_step(self, step: Step) -> float:
        """Return the time of the slowest rank, so that all ranks continue or stop alike."""
        started_at = perf_counter()
        self._runner.run(step, self._cache)
        return -self._group.all_reduce_min(-round(1e9 * (perf_counter() - started_at))) / 1e9

    def _make_decode_step(self, num_sequences: int, length: int) -> Step:
        return Step(decodes=[self._make_sequence(sequence_id, min(length, self._max_sizes.max_sequence_length))
                             for sequence_id in range(num_sequences)])

    def _make_chunk_step(self, num_tokens: int, num_decodes: int) -> Step:
        step = self._make_decode_step(num_decodes, SHORT_CONTEXT_TOKENS)
        step.chunks.append(PrefillChunk(self._make_sequence(num_decodes, num_tokens), 0, num_tokens))
        return step

    def _make_last_chunk_step(self, num_tokens: int, num_decodes: int) -> Step:
        """Return a step with the end of the longest prompt, which attends to everything before it, beside decodes."""
        step, length = self._make_decode_step(num_decodes, SHORT_CONTEXT_TOKENS), self._max_sizes.max_sequence_length
        step.chunks.append(PrefillChunk(self._make_sequence(num_decodes, length), length - num_tokens, num_tokens))
        return step

    def _make_sequence(self, sequence_id: int, length: int) -> Sequence:
        blocks = [number % self._cache.num_blocks for number in range(-(-length // self._cache.block_size))]
        return Sequence(id=sequence_id, tokens=[0] * length, num_prompt_tokens=length, num_initial_tokens=length,
                        num_computed_tokens=0, num_cached_tokens=0, blocks=blocks, sampling_key=sequence_id,
                        sampling=WARMUP_SAMPLING_PARAMS, wants_prompt_logprobs=False, adapter_id=0, grammar_id=0)
