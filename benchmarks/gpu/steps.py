"""Timing of a model's steps: consecutive decode steps as a shard runs them, and prefill of whole prompts.

There is no router and there are no messages. Every sequence has its own blocks; tokens, weights and cache contents are
random, since matmuls of equal rows, or of zeros, take different times.
"""

from collections.abc import Iterable
from time import perf_counter

from benchmarks.harness.random_state import blocks_of, done, drawn_cache, drawn_sequence
from shard.runner.cuda_graphs import Extent
from shard.state.sequence import EXPECTED, Sequence
from shard.state.transaction import Chunk, Step
from shard.workers.load_decoder import Loaded

STEPS = 50  # decode steps that are timed together
FAILED = "a step with random weights came to something that is no number"


class Stage:
    """A loaded model with a cache for the largest step, which smaller steps use, too."""

    def __init__(self, loaded: Loaded, batch: int, context: int) -> None:
        self._runner, self._vocabulary = loaded.runner, loaded.config.vocabulary_size
        self._each = blocks_of(context)
        self._cache = drawn_cache(loaded, batch * self._each)
        replays = loaded.replays(self._cache, Extent(batch, context))
        self.replayed = replays is not None
        self._runner.replay(replays)

    def decode_seconds(self, batch: int, context: int, repeat: int) -> list[float]:
        """Return the seconds per decode step of each repetition; one more before them does not count.

        With CUDA graphs, each step is started before the previous one is complete."""
        return [self._steady(batch, context) for _ in range(repeat + 1)][1:]

    def prompt_seconds(self, lengths: Iterable[int], repeat: int) -> list[float]:
        """Return the seconds of a step with prompts of these lengths, of each repetition after an uncounted one."""
        step = Step(chunks=[Chunk(self._sequence(number, length, 0), 0, length)
                            for number, length in enumerate(lengths)])
        return [self._run(step) for _ in range(repeat + 1)][1:]

    def _steady(self, batch: int, context: int) -> float:
        known, expected = (Step(decodes=[self._sequence(number, context, context - 1) for number in range(batch)])
                           for _ in range(2))
        for sequence in expected.decodes:
            sequence.tokens[-1] = EXPECTED
        last = self._runner.begin(known, self._cache, None)
        if last is None:
            return self._run(known)
        last.wait()
        began = perf_counter()
        for _ in range(STEPS):
            behind, last = last, self._runner.begin(expected, self._cache, last)
            assert last is not None, "what was replayed once can be replayed again"
            if behind.choices() is None:
                raise ValueError(FAILED)
        last.wait()
        return (perf_counter() - began) / STEPS

    def _run(self, step: Step) -> float:
        began = perf_counter()
        outcome = self._runner.run(step, self._cache)
        done()
        seconds = perf_counter() - began
        if outcome.failures:
            raise ValueError(FAILED)
        return seconds

    def _sequence(self, number: int, length: int, computed: int) -> Sequence:
        return drawn_sequence(number, length, computed, self._vocabulary, self._each)
