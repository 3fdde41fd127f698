"""Builders of protocol messages: rows here become the columns of the protobuf messages."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import chain
from typing import Any

from shard.pb import shard_pb2 as pb

WARMUP = pb.WarmupRequest(
    block_size=16, max_prefill_tokens=256, max_batch_size=64, max_total_tokens=256, max_cache_tokens=512)


@dataclass(frozen=True)
class Row:
    """A new sequence; each of its `blocks` holds 16 tokens."""

    id: int
    tokens: Rows[int]
    blocks: Rows[int]
    prompt: int | None = None
    cached: int = 0
    key: int = 0
    adapter: int = 0
    grammar: int = 0
    prompt_logprobs: bool = False
    top: int = 0


def sequences(*rows: Row) -> pb.Sequences:
    return pb.Sequences(
        ids=[r.id for r in rows], num_tokens=[len(r.tokens) for r in rows], tokens=chain(*[r.tokens for r in rows]),
        num_prompt_tokens=[len(r.tokens) if r.prompt is None else r.prompt for r in rows],
        num_cached=[r.cached for r in rows], num_blocks=[len(r.blocks) for r in rows],
        blocks=chain(*[r.blocks for r in rows]), keys=[r.key for r in rows],
        sampling=pb.Sampling(top_n_tokens=[r.top for r in rows]),
        prompt_logprobs=[r.prompt_logprobs for r in rows], adapters=[r.adapter for r in rows],
        grammars=[r.grammar for r in rows])


def chunks(*rows: tuple[int, int, int]) -> pb.Chunks:
    """Build chunks from rows of (sequence, start, length)."""
    return pb.Chunks(sequences=[r[0] for r in rows], starts=[r[1] for r in rows], lengths=[r[2] for r in rows])


def prefill(batch: int, *rows: Row, run: Rows[tuple[int, int, int]] | None = None, **more: Any) -> pb.PrefillRequest:
    """Build a prefill that runs all uncached tokens of the new sequences, or the chunks in `run`."""
    run = [(r.id, r.cached, len(r.tokens) - r.cached) for r in rows] if run is None else run
    return pb.PrefillRequest(batch=batch, sequences=sequences(*rows), chunks=chunks(*run), **more)


def decode(batch: int, **more: Any) -> pb.DecodeRequest:
    return pb.DecodeRequest(batch=batch, **more)


def grants(**blocks: Rows[int]) -> pb.Grants:
    """Build grants of blocks; the keyword for sequence 7 is `s7`."""
    return pb.Grants(sequences=[int(name[1:]) for name in blocks], num_blocks=[len(b) for b in blocks.values()],
                     blocks=chain(*blocks.values()))


def keep(*ids: int) -> pb.Keep:
    return pb.Keep(sequences=ids)


def join(*batches: int) -> pb.Join:
    return pb.Join(batches=batches)


def filtered(batch: int, *ids: int) -> pb.FilterRequest:
    return pb.FilterRequest(batch=batch, keep=keep(*ids))


def concat(*batches: int) -> pb.ConcatRequest:
    return pb.ConcatRequest(batches=batches)


def embed(*texts: Rows[int], wanted: pb.Wanted = pb.VECTORS, **more: Any) -> pb.EmbedRequest:
    return pb.EmbedRequest(wanted=wanted, num_tokens=map(len, texts), tokens=chain(*texts), **more)


def vectors_of(answer: pb.EmbedAnswer) -> list[list[float]]:
    """Return one vector per row."""
    starts = range(0, len(answer.values), max(1, answer.width))
    return [list(answer.values[start:start + answer.width]) for start in starts]


def labelled_rows(answer: pb.EmbedAnswer) -> list[list[tuple[int, float]]]:
    """Return, per row, the label and score of every token."""
    pairs = iter(zip(answer.labels, answer.scores, strict=True))
    return [[next(pairs) for _ in range(count)] for count in answer.num_labels]


def rows_of(answer: pb.StepAnswer) -> dict[int, list[int]]:
    """Return the tokens by sequence id."""
    counts = answer.num_tokens or [1] * len(answer.sequences)
    tokens = iter(answer.tokens)
    return {i: [next(tokens) for _ in range(count)] for i, count in zip(answer.sequences, counts, strict=True)}
