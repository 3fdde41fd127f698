"""Warm-up: steps that are run and timed before anything is served.

Sizes grow, kind by kind, up to the largest that the limits allow; on a CPU, where a large step takes many seconds and
its memory need not be measured, only until a step takes long enough to predict larger ones. Nothing is served
meanwhile, so all sequences of the warm-up share the cache's first blocks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from time import perf_counter

from shard.attention.kv_cache import Cache
from shard.parallel.group import Group
from shard.pb import shard_pb2 as pb
from shard.runner.runner import Runner
from shard.state.sequence import Sampling, Sequence
from shard.state.transaction import Chunk, Step

PATIENCE = {"cpu": 0.1, "cuda": inf}  # seconds of a step, by device, after which no larger one of its kind is tried
BRIEF = 0.05  # seconds; a step up to this is run once more, since its first run may include much setup
GROWTH = 4
SHORT = 32  # context of a decode, unless the context is what grows
SAMPLING = Sampling(temperature=1.0, top_p=0.9)


@dataclass(frozen=True, slots=True)
class Measured:
    rows: int
    chunk_tokens: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the largest step that the limits allow."""

    rows: int
    chunk_tokens: int
    length: int  # of the longest sequence

    @classmethod
    def of(cls, request: pb.WarmupRequest, num_places: int) -> "Sizes":
        """Return the sizes for a cache of `num_places` slots."""
        length = min(request.max_total_tokens or num_places, num_places)
        return cls(request.max_batch_size, min(request.max_prefill_tokens, length), length)


def note(measured: Iterable[Measured], answer: pb.WarmupAnswer) -> None:
    for one in measured:
        answer.rows.append(one.rows)
        answer.chunk_tokens.append(one.chunk_tokens)
        answer.context.append(one.context)
        answer.seconds.append(one.seconds)


class Rehearsal:
    """Warm-up of a model that generates."""

    def __init__(self, runner: Runner, cache: Cache, sizes: Sizes, group: Group, patience: float) -> None:
        self._runner = runner
        self._cache = cache
        self._sizes = sizes
        self._group = group
        self._patience = patience

    def measure(self) -> list[Measured]:
        return [one for kind in self._kinds() for one in self._measure(kind)]

    def run_largest(self) -> None:
        self._runner.run(self._last_chunk(self._sizes.chunk_tokens, self._sizes.rows), self._cache)

    def _kinds(self) -> list[Iterator[Step]]:
        """Return the steps of each kind: a growing number of decodes, one decode that grows, one chunk that grows."""
        sizes = self._sizes
        return [
            (self._decodes(count, SHORT) for count in growing(1, sizes.rows)),
            (self._decodes(1, length) for length in growing(8 * SHORT, sizes.length)),
            (self._chunk(tokens, 0) for tokens in growing(16, sizes.chunk_tokens)),
        ]

    def _measure(self, kind: Iterator[Step]) -> Iterator[Measured]:
        for number, step in enumerate(kind):
            seconds = self._time(step)
            if seconds <= BRIEF or self._patience == inf:  # where all sizes are run, kernels are compiled on the way
                seconds = min(seconds, self._time(step))  # the first run may have had to set things up
            rows = len(step.decodes) + len(step.chunks)
            context = sum(len(sequence.tokens) for sequence in step.sequences)
            yield Measured(rows, sum(chunk.length for chunk in step.chunks), context, seconds)
            if seconds > self._patience and number:  # one size alone gives no slope
                return

    def _time(self, step: Step) -> float:
        """Return the time of the slowest rank, so that all ranks continue or stop alike."""
        began = perf_counter()
        self._runner.run(step, self._cache)
        return -self._group.minimum(-round(1e9 * (perf_counter() - began))) / 1e9

    def _decodes(self, rows: int, length: int) -> Step:
        return Step(decodes=[self._sequence(number, min(length, self._sizes.length)) for number in range(rows)])

    def _chunk(self, tokens: int, rows: int) -> Step:
        step = self._decodes(rows, SHORT)
        step.chunks.append(Chunk(self._sequence(rows, tokens), 0, tokens))
        return step

    def _last_chunk(self, tokens: int, rows: int) -> Step:
        """Return a step with the end of the longest prompt, which attends to everything before it, beside decodes."""
        step, length = self._decodes(rows, SHORT), self._sizes.length
        step.chunks.append(Chunk(self._sequence(rows, length), length - tokens, tokens))
        return step

    def _sequence(self, number: int, length: int) -> Sequence:
        blocks = [number % self._cache.num_blocks for number in range(-(-length // self._cache.block_size))]
        return Sequence(id=number, tokens=[0] * length, num_prompt_tokens=length, num_given=length, computed=0,
                        num_cached=0, blocks=blocks, key=number, sampling=SAMPLING, prompt_logprobs=False, adapter=0,
                        grammar=0)


def growing(first: int, last: int) -> Iterator[int]:
    size = first
    while size < last:
        yield size
        size *= GROWTH
    yield last
