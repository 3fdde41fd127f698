"""One run of a batch by a shard's verbs, with timings: a Prefill, a Decode for each further token, and a Filter.

Prompts are random token ids: the cost of a step does not depend on them, and a shard does not stop at end tokens.
"""

from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Annotated, Any, Protocol

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.shards.rank_connections import RankReplies, ShardFailed
from shard.pb import shard_pb2 as pb

BATCH_ID = 1
BLOCK_SIZE = 16  # the router's default
Probability = Annotated[float | None, Parameter(validator=Number(gt=0, lte=1))]


class ShardGroupConnection(Protocol):
    """Connection to all ranks of one model."""

    async def send(self, message: Any) -> RankReplies: ...


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """Sampling parameters, with the names and meanings of text-generation-inference."""

    temperature: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    "Sampling temperature; another value than 1 turns sampling on."
    top_k: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    "Sample among this number of most likely tokens."
    top_p: Probability = None
    "Sample among the most likely tokens with this total probability."
    typical_p: Probability = None
    "Typical sampling: total probability of the tokens closest to the expected information."
    repetition_penalty: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    "Penalty for tokens that have occurred; 1 is off."
    frequency_penalty: Annotated[float | None, Parameter(validator=Number(gte=-2, lte=2))] = None
    "Penalty for tokens by their relative frequency so far."
    watermark: bool = False
    "Watermark the output."
    do_sample: bool = False
    "Sample. Without this, --temperature, --top-k, --top-p and --typical-p, decoding is greedy."
    top_n_tokens: Annotated[int | None, Parameter(validator=Number(gte=0))] = None
    "Number of most likely tokens to report for each token."

    @property
    def needs_sampling(self) -> bool:
        filters = self.top_k, self.top_p, self.typical_p
        return self.do_sample or self.temperature not in {None, 1.0} or any(value is not None for value in filters)

    def to_columns(self, num_rows: int) -> pb.Sampling:
        """Return the columns of `rows` equal rows; a parameter that is off has no column."""
        values: dict[str, Any] = {
            "temperature": (self.temperature or 1.0) if self.needs_sampling else 0.0,
            "top_k": self.top_k, "top_p": self.top_p, "typical_p": self.typical_p,
            "repetition_penalty": self.repetition_penalty, "relative_frequency_penalty": self.frequency_penalty,
            "watermark": self.watermark, "top_n_tokens": self.top_n_tokens}
        return pb.Sampling(**{name: [value] * num_rows for name, value in values.items() if value})


@dataclass(frozen=True, slots=True)
class SequenceLengths:
    """Prompt and output length of every sequence of a run, and the block size of the cache."""

    sequence_length: int
    decode_length: int
    block_size: int
    tokens_per_step: int = 1

    @property
    def num_slots(self) -> int:
        """Cache slots of a sequence; its last token is never computed."""
        return self.sequence_length + (self.decode_length - 1) * self.tokens_per_step

    @property
    def num_blocks(self) -> int:
        return -(-self.num_slots // self.block_size)


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds and generated tokens of one Prefill or Decode."""

    wall_seconds: float  # seconds from sending to the last rank's answer
    forward_seconds: float  # seconds of the forward pass, as rank 0 reports them
    num_tokens: int


@dataclass(frozen=True, slots=True)
class BatchRunTimings:
    """Timings of one run of a batch: its Prefill, and a Decode for each further token."""

    prefill_timing: StepTiming
    decode_timings: tuple[StepTiming, ...]


class BatchRunner:
    """Sender of the messages of one epoch, numbered in order from the Reset on."""

    def __init__(self, connection: ShardGroupConnection, epoch: int) -> None:
        self._connection = connection
        self._message_numbers = ({"epoch": epoch, "order": order} for order in count(1))

    async def run_batch(self, sequences: pb.Sequences, decode_length: int) -> BatchRunTimings:
        """Prefill the sequences, decode up to `decode_length` tokens, and drop them.

        Every sequence is sent with all blocks that it will need."""
        num_rows = len(sequences.ids)
        chunks = pb.Chunks(sequences=sequences.ids, starts=[0] * num_rows, lengths=sequences.num_tokens)
        prefill = await self._run_step(num_rows, pb.PrefillRequest(**self._next_message_fields, sequences=sequences,
                                                                   chunks=chunks))
        decodes = [await self._run_step(num_rows, pb.DecodeRequest(**self._next_message_fields))
                   for _ in range(decode_length - 1)]
        await self._connection.send(pb.FilterRequest(**self._next_message_fields, keep=pb.Keep()))
        return BatchRunTimings(prefill, tuple(decodes))

    @property
    def _next_message_fields(self) -> dict[str, Any]:
        """Epoch, order and batch of the next message; each access uses up a number."""
        return {**next(self._message_numbers), "batch": BATCH_ID}

    async def _run_step(self, num_rows: int, message: pb.PrefillRequest | pb.DecodeRequest) -> StepTiming:
        replies = await self._connection.send(message)
        answer: pb.StepAnswer = replies.answers[0]
        if answer.failed or len(answer.sequences) != num_rows:
            failure_names = ", ".join(sorted({pb.Failure.Name(failure)
                                              for failure in answer.failures})) or "it did not say why"
            raise ShardFailed(
                f"the shard gave tokens to {len(answer.sequences)} of {num_rows} sequences: {failure_names}")
        return StepTiming(replies.seconds, answer.forward_seconds, len(answer.tokens))


def make_random_sequences(num_sequences: int, shape: SequenceLengths, vocabulary_size: int,
                          sampling: SamplingSettings) -> pb.Sequences:
    """Return new sequences with random tokens, which depend on the arguments only."""
    random = Random(num_sequences)
    return pb.Sequences(
        ids=range(1, num_sequences + 1), num_tokens=[shape.sequence_length] * num_sequences,
        tokens=[random.randrange(vocabulary_size) for _ in range(num_sequences * shape.sequence_length)],
        num_blocks=[shape.num_blocks] * num_sequences, blocks=range(num_sequences * shape.num_blocks),
        keys=range(1, num_sequences + 1),
        sampling=sampling.to_columns(num_sequences))
