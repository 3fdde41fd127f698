"""Warm-up: steps that are run and timed before anything is served, with sizes that grow kind by kind. The router
predicts the time of steps from them; on a GPU the largest step also shows how much memory a step needs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import NamedTuple

from shard.attention.kv_cache import KVCache
from shard.hardware.probe_cache import ProbeCache
from shard.parallel.group import RankGroup
from shard.pb import shard_pb2 as pb
from shard.runner.model_runner import ModelRunner
from shard.state.sequence import PoolingText, SamplingParams, Sequence
from shard.state.step import PrefillChunk, Step

# seconds of a step, by device, after which no larger one of its kind is tried; on a CPU, where a large step takes many
# seconds and its memory need not be measured, such a step is enough to predict larger ones
SLOW_STEP_SECONDS = {"cpu": 0.1, "cuda": inf}
MAX_REPEATED_SECONDS = 0.15  # seconds; a step up to this is run once more, since its first run may include much setup
MAX_REMEMBERED_RATIO = 1.3  # of a remembered time and the present one, beyond which all are measured again
SIZE_GROWTH_FACTOR = 4
SHORT_CONTEXT_TOKENS = 32  # context of a decode, and length of a text, unless that is what grows
MIN_TEXT_TOKENS = 16  # tokens of the shortest of the growing texts
WARMUP_SAMPLING_PARAMS = SamplingParams(temperature=1.0, top_p=0.9)


class MaxStepSizes(NamedTuple):
    """Sizes of the largest step that the limits allow."""

    max_rows: int
    max_chunk_tokens: int
    max_sequence_length: int  # of the longest sequence

    @classmethod
    def from_request(cls, request: pb.WarmupRequest, num_slots: int) -> "MaxStepSizes":
        """Return the sizes for a cache of `num_slots` slots."""
        length = min(request.max_total_tokens or num_slots, num_slots)
        return cls(request.max_batch_size, min(request.max_prefill_tokens, length), length)


class WarmupStep(NamedTuple):
    """A step of the warm-up, and its sizes."""

    run: Callable[[], object]
    num_rows: int
    num_chunk_tokens: int
    num_context_tokens: int


def measure_steps(step_series: Iterable[Iterator[WarmupStep]], group: RankGroup, slow_step_seconds: float,
                  answer: pb.WarmupAnswer) -> None:
    """Run the steps of each kind, and write their sizes and times to the answer. Once one takes `slow_step_seconds`, no
    larger one of its kind is run."""
    for series in step_series:
        for number, step in enumerate(series):
            seconds = time_step(step, group)
            # where all sizes are run, kernels are compiled on the way
            if seconds <= MAX_REPEATED_SECONDS or slow_step_seconds == inf:
                seconds = min(seconds, time_step(step, group))  # the first run may have had to set things up
            answer.rows.append(step.num_rows)
            answer.chunk_tokens.append(step.num_chunk_tokens)
            answer.context.append(step.num_context_tokens)
            answer.seconds.append(seconds)
            if seconds > slow_step_seconds and number:  # one size alone gives no slope
                break


@dataclass(frozen=True, slots=True)
class WarmupTimingCache:
    """Sizes and times of a warm-up's steps, kept for the next start of the same model on the same machine."""

    probe_cache: ProbeCache
    key: str

    def save(self, answer: pb.WarmupAnswer) -> None:
        self.probe_cache.put(self.key, json.dumps({"rows": [*answer.rows], "chunk_tokens": [*answer.chunk_tokens],
                                                   "context": [*answer.context], "seconds": [*answer.seconds]}))

    def restore(self, first_step: WarmupStep, group: RankGroup, answer: pb.WarmupAnswer) -> bool:
        """Write what is remembered to the answer and return true. Return false if there is nothing, or if the first
        step is much faster now: the machine was busy then. The ranks must be on one machine, so that all remember the
        same."""
        remembered = self._read()
        if not group.all_reduce_min(int(bool(remembered))):
            return False
        seconds = min(time_step(first_step, group), time_step(first_step, group))
        if not group.all_reduce_min(int(remembered["seconds"][0] <= MAX_REMEMBERED_RATIO * seconds)):
            return False
        for name, values in remembered.items():
            getattr(answer, name).extend(values)
        return True

    def _read(self) -> Mapping[str, list[float]]:
        text = self.probe_cache.get(self.key)
        remembered: dict[str, list[float]] = {} if text is None else json.loads(text)
        return remembered


def time_step(step: WarmupStep, group: RankGroup) -> float:
    """Return the time of the slowest rank, so that all ranks continue or stop alike."""
    started_at = perf_counter()
    step.run()
    return -group.all_reduce_min(-round(1e9 * (perf_counter() - started_at))) / 1e9


def iter_growing_sizes(first: int, last: int) -> Iterator[int]:
    size = first
    while size < last:
        yield size
        size *= SIZE_GROWTH_FACTOR
    yield last


@dataclass(frozen=True)
class DecoderWarmupSteps:
    """Steps of a decoder's warm-up. Nothing is served meanwhile, so all their sequences share the cache's first blocks.
    """

    runner: ModelRunner
    cache: KVCache
    max_sizes: MaxStepSizes

    def make_series(self) -> list[Iterator[WarmupStep]]:
        """Return the steps of each kind: a growing number of decodes, one decode that grows, one chunk that grows."""
        max_rows, max_chunk_tokens, max_length = self.max_sizes
        return [
            (self._make_step(count, SHORT_CONTEXT_TOKENS, []) for count in iter_growing_sizes(1, max_rows)),
            (self._make_step(1, length, [])
             for length in iter_growing_sizes(8 * SHORT_CONTEXT_TOKENS, max_length)),
            (self._make_step(0, 0, [PrefillChunk(self._make_sequence(0, tokens), 0, tokens)])
             for tokens in iter_growing_sizes(16, max_chunk_tokens)),
        ]

    def run_largest(self) -> None:
        """Run a step with the end of the longest prompt, which attends to everything before it, beside decodes."""
        max_rows, num_tokens, length = self.max_sizes
        chunk = PrefillChunk(self._make_sequence(max_rows, length), length - num_tokens, num_tokens)
        self._make_step(max_rows, SHORT_CONTEXT_TOKENS, [chunk]).run()

    def _make_step(self, num_decodes: int, length: int, chunks: list[PrefillChunk]) -> WarmupStep:
        length = min(length, self.max_sizes.max_sequence_length)
        step = Step(decodes=[self._make_sequence(sequence_id, length) for sequence_id in range(num_decodes)],
                    chunks=chunks)
        return WarmupStep(lambda: self.runner.run(step, self.cache), num_decodes + len(chunks),
                          sum(chunk.length for chunk in chunks),
                          sum(len(sequence.tokens) for sequence in step.sequences))

    def _make_sequence(self, sequence_id: int, length: int) -> Sequence:
        blocks = [number % self.cache.num_blocks for number in range(-(-length // self.cache.block_size))]
        return Sequence.from_prompt(sequence_id, [0] * length, blocks, sampling=WARMUP_SAMPLING_PARAMS)


def make_encoder_series(run_texts: Callable[[list[PoolingText]], object],
                        max_sizes: MaxStepSizes) -> list[Iterator[WarmupStep]]:
    """Return the steps of each kind: one text that grows, a growing number of short texts."""
    longest = min(max_sizes.max_sequence_length, max_sizes.max_chunk_tokens)
    short_length = min(SHORT_CONTEXT_TOKENS, longest)
    max_texts = min(max_sizes.max_rows, max_sizes.max_chunk_tokens // short_length)

    def make_step(count: int, length: int) -> WarmupStep:
        texts = [PoolingText([0] * length)] * count
        return WarmupStep(lambda: run_texts(texts), count, count * length, count * length)

    return [
        (make_step(1, length) for length in iter_growing_sizes(min(MIN_TEXT_TOKENS, longest), longest)),
        (make_step(count, short_length) for count in iter_growing_sizes(min(2, max_texts), max_texts)),
    ]
