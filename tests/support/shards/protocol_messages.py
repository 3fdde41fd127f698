"""Builders of protocol messages: rows here become the columns of the protobuf messages."""

from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from shard.pb import shard_pb2 as pb

WARMUP_REQUEST = pb.WarmupRequest(
    block_size=16, max_prefill_tokens=256, max_batch_size=64, max_total_tokens=256, max_cache_tokens=512)


@dataclass(frozen=True)
class SequenceRow:
    """A new sequence; each of its `blocks` holds 16 tokens."""

    id: int
    tokens: GenericSequence[int]
    blocks: GenericSequence[int]
    num_prompt_tokens: int | None = None
    num_cached: int = 0
    sampling_key: int = 0
    adapter_id: int = 0
    grammar_id: int = 0
    prompt_logprobs: bool = False
    top_n_tokens: int = 0
    num_prompt_top_tokens: int = 0


def make_sequences(*rows: SequenceRow) -> pb.Sequences:
    return pb.Sequences(
        ids=[r.id for r in rows], num_tokens=[len(r.tokens) for r in rows], tokens=chain(*[r.tokens for r in rows]),
        num_prompt_tokens=[len(r.tokens) if r.num_prompt_tokens is None else r.num_prompt_tokens for r in rows],
        num_cached=[r.num_cached for r in rows], num_blocks=[len(r.blocks) for r in rows],
        blocks=chain(*[r.blocks for r in rows]), keys=[r.sampling_key for r in rows],
        sampling=pb.Sampling(top_n_tokens=[r.top_n_tokens for r in rows]),
        prompt_logprobs=[r.prompt_logprobs for r in rows], adapters=[r.adapter_id for r in rows],
        grammars=[r.grammar_id for r in rows], num_prompt_top_tokens=[r.num_prompt_top_tokens for r in rows])


def make_chunks(*rows: tuple[int, int, int]) -> pb.Chunks:
    """Build chunks from rows of (sequence, start, length)."""
    return pb.Chunks(sequences=[r[0] for r in rows], starts=[r[1] for r in rows], lengths=[r[2] for r in rows])


def make_prefill(batch: int, *rows: SequenceRow, chunk_rows: GenericSequence[tuple[int, int, int]] | None = None,
                 **fields: Any) -> pb.PrefillRequest:
    """Build a prefill that runs all uncached tokens of the new sequences, or the chunks in `chunk_rows`."""
    chunk_rows = [(r.id, r.num_cached, len(r.tokens) - r.num_cached)
                  for r in rows] if chunk_rows is None else chunk_rows
    return pb.PrefillRequest(batch=batch, sequences=make_sequences(*rows), chunks=make_chunks(*chunk_rows), **fields)


def make_decode(batch: int, **fields: Any) -> pb.DecodeRequest:
    return pb.DecodeRequest(batch=batch, **fields)


def make_grants(**blocks: GenericSequence[int]) -> pb.Grants:
    """Build grants of blocks; the keyword for sequence 7 is `s7`."""
    return pb.Grants(sequences=[int(name[1:]) for name in blocks], num_blocks=[len(b) for b in blocks.values()],
                     blocks=chain(*blocks.values()))


def make_keep(*ids: int) -> pb.Keep:
    return pb.Keep(sequences=ids)


def make_join(*batches: int) -> pb.Join:
    return pb.Join(batches=batches)


def make_filter(batch: int, *ids: int) -> pb.FilterRequest:
    return pb.FilterRequest(batch=batch, keep=make_keep(*ids))


def make_concat(*batches: int) -> pb.ConcatRequest:
    return pb.ConcatRequest(batches=batches)


def make_embed(*texts: GenericSequence[int], wanted: pb.Wanted = pb.VECTORS, **fields: Any) -> pb.EmbedRequest:
    return pb.EmbedRequest(wanted=wanted, num_tokens=map(len, texts), tokens=chain(*texts), **fields)


def get_embeddings(answer: pb.EmbedAnswer) -> list[list[float]]:
    """Return one vector per row."""
    starts = range(0, len(answer.values), max(1, answer.width))
    return [list(answer.values[start:start + answer.width]) for start in starts]


def get_labels_by_text(answer: pb.EmbedAnswer) -> list[list[tuple[int, float]]]:
    """Return, per row, the label and score of every token."""
    pairs = iter(zip(answer.labels, answer.scores, strict=True))
    return [[next(pairs) for _ in range(count)] for count in answer.num_labels]


def get_tokens_by_sequence(answer: pb.StepAnswer) -> dict[int, list[int]]:
    """Return the tokens by sequence id."""
    counts = answer.num_tokens or [1] * len(answer.sequences)
    tokens = iter(answer.tokens)
    return {i: [next(tokens) for _ in range(count)] for i, count in zip(answer.sequences, counts, strict=True)}
