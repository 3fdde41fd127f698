"""Sizes and measurements of the steps that are timed before anything is served."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from shard.pb import shard_pb2 as pb

# seconds of a step, by device, after which no larger one of its kind is tried
SLOW_STEP_SECONDS = {"cpu": 0.1, "cuda": inf}
MAX_REPEATED_SECONDS = 0.05  # seconds; a step up to this is run once more, since its first run may include much setup
SIZE_GROWTH_FACTOR = 4
SHORT_CONTEXT_TOKENS = 32  # context of a decode, unless the context is what grows


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """Measured time of a step of a given size."""

    num_rows: int
    num_chunk_tokens: int
    num_context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MaxStepSizes:
    """Sizes of the largest step that the limits allow."""

    max_rows: int
    max_chunk_tokens: int
    max_sequence_length: int  # of the longest sequence

    @classmethod
    def from_request(cls, request: pb.WarmupRequest, num_slots: int) -> "MaxStepSizes":
        """Return the sizes for a cache of `num_slots` slots."""
        length = min(request.max_total_tokens or num_slots, num_slots)
        return cls(request.max_batch_size, min(request.max_prefill_tokens, length), length)


def write_measurements(measurements: Iterable[StepMeasurement], answer: pb.WarmupAnswer) -> None:
    for measurement in measurements:
        answer.rows.append(measurement.num_rows)
        answer.chunk_tokens.append(measurement.num_chunk_tokens)
        answer.context.append(measurement.num_context_tokens)
        answer.seconds.append(measurement.seconds)


def iter_growing_sizes(first: int, last: int) -> Iterator[int]:
    size = first
    while size < last:
        yield size
        size *= SIZE_GROWTH_FACTOR
    yield last
