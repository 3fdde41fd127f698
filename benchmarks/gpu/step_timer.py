"""Timing of a model's steps: consecutive decode steps as a shard runs them, and prefill of whole prompts.

There is no router and there are no messages. Every sequence has its own blocks; tokens, weights and cache contents are
random, since matmuls of equal rows, or of zeros, take different times.
"""

from collections.abc import Iterable
from time import perf_counter

from benchmarks.harness.gpu_timing import synchronize_gpu
from benchmarks.harness.random_step_inputs import make_random_cache, make_random_sequence, num_blocks_for
from shard.state.sequence import PLACEHOLDER_TOKEN, Sequence
from shard.state.step import PrefillChunk, Step
from shard.workers.model_loading import LoadedDecoder

NUM_TIMED_STEPS = 50  # decode steps that are timed together
NOT_FINITE_ERROR = "a step with random weights came to something that is no number"


class StepTimer:
    """A loaded model with a cache for the largest step, which smaller steps use, too."""

    def __init__(self, loaded_model: LoadedDecoder, max_batch_size: int, max_context_length: int,
                 num_blocks: int | None = None) -> None:
        """`num_blocks` of the cache: by default so many that all sequences can have the largest context at once."""
        self._runner, self._vocabulary = loaded_model.runner, loaded_model.config.vocabulary_size
        self._cache = make_random_cache(loaded_model, num_blocks or max_batch_size * num_blocks_for(max_context_length))
        self._cuda_graphs = loaded_model.capture_decode_steps(self._cache, max_batch_size, max_context_length)
        self.uses_cuda_graphs = self._cuda_graphs is not None
        self._runner.cuda_graph_runner = self._cuda_graphs

    def time_decode_steps(self, batch_size: int, context_length: int, num_repetitions: int) -> list[float]:
        """Return the seconds per decode step of each repetition; one more before them does not count.

        With CUDA graphs, each step is started before the previous one is complete."""
        return [self._time_consecutive_decodes(batch_size, context_length) for _ in range(num_repetitions + 1)][1:]

    def time_prefill(self, prompt_lengths: Iterable[int], num_repetitions: int) -> list[float]:
        """Return the seconds of a step with prompts of these lengths, of each repetition after an uncounted one."""
        lengths = list(prompt_lengths)
        num_blocks = num_blocks_for(max(lengths))
        step = Step(chunks=[PrefillChunk(self._make_sequence(number, length, 0, num_blocks), 0, length)
                            for number, length in enumerate(lengths)])
        return [self._time_step(step) for _ in range(num_repetitions + 1)][1:]

    def _time_consecutive_decodes(self, batch_size: int, context_length: int) -> float:
        first_step, placeholder_step = (Step(decodes=[
            self._make_sequence(number, context_length, context_length - 1, num_blocks_for(context_length))
            for number in range(batch_size)]) for _ in range(2))
        for sequence in placeholder_step.decodes:
            sequence.tokens[-1] = PLACEHOLDER_TOKEN
        cuda_graphs = self._cuda_graphs
        if cuda_graphs is None or (latest_handle := cuda_graphs.begin_step(first_step, self._cache, None)) is None:
            return self._time_step(first_step)
        latest_handle.wait()
        started_at = perf_counter()
        for _ in range(NUM_TIMED_STEPS):
            previous_handle, latest_handle = latest_handle, cuda_graphs.begin_step(placeholder_step, self._cache,
                                                                                   latest_handle)
            assert latest_handle is not None, "what was replayed once can be replayed again"
            if previous_handle.get_sampled_tokens() is None:
                raise ValueError(NOT_FINITE_ERROR)
        latest_handle.wait()
        return (perf_counter() - started_at) / NUM_TIMED_STEPS

    def _time_step(self, step: Step) -> float:
        started_at = perf_counter()
        result = self._runner.run(step, self._cache)
        synchronize_gpu()
        seconds = perf_counter() - started_at
        if result.failures:
            raise ValueError(NOT_FINITE_ERROR)
        return seconds

    def _make_sequence(self, number: int, num_tokens: int, num_computed: int, num_blocks: int) -> Sequence:
        return make_random_sequence(number, num_tokens, num_computed, self._vocabulary, num_blocks)
