"""Encoding of the scheduler's messages, from rows to the columns of proto/shard.proto."""

from collections.abc import Callable, Collection
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from router.request import ADAPTER, GRAMMAR, Request, RequestKind, SamplingParams
from router.scheduler.messages import (
    BlockGrant,
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    ShardMessage,
    StepPlan,
)
from shard.pb import shard_pb2 as pb

RESOURCE_KINDS: dict[str, "pb.Kind"] = {ADAPTER: pb.KIND_ADAPTER, GRAMMAR: pb.KIND_GRAMMAR}
WANTED_BY_KIND: dict[RequestKind, "pb.Wanted"] = {RequestKind.EMBED: pb.VECTORS, RequestKind.CLASSIFY: pb.LABELS}
NO_SAMPLING = SamplingParams()
SAMPLING_FIELDS = [(field.name, field.default, attrgetter(field.name)) for field in fields(SamplingParams)]

T = TypeVar("T")

TraceparentLookup = Callable[[int], str]  # of a sequence
ShardRequest = pb.PrefillRequest | pb.DecodeRequest | pb.FilterRequest | pb.ConcatRequest | pb.EmbedRequest


def encode_plan(plan: StepPlan, get_traceparent: TraceparentLookup = lambda _: "") -> list[ShardRequest]:
    """Encode the messages of a plan. `get_traceparent` returns the parent span of a sequence's chunks."""
    requests = [_encode_message(message, get_traceparent) for message in plan.messages]
    for message_number, request in enumerate(requests, plan.last_message_number - len(requests) + 1):
        request.epoch, request.order = plan.epoch, message_number
    return requests


def _encode_message(message: ShardMessage, get_traceparent: TraceparentLookup) -> ShardRequest:
    match message:
        case Prefill():
            return pb.PrefillRequest(
                batch=message.batch, alongside=message.includes_decodes,
                sequences=_encode_sequences(message.new_sequences) if message.new_sequences else None,
                chunks=pb.Chunks(
                    sequences=[c.sequence_id for c in message.chunks], starts=[c.start for c in message.chunks],
                    lengths=[c.length for c in message.chunks],
                    traceparents=_encode_column([get_traceparent(c.sequence_id) for c in message.chunks], "")),
                grants=_encode_grants(message.grants) if message.grants else None,
                keep=None if message.keep is None else pb.Keep(sequences=message.keep))
        case Decode():
            return pb.DecodeRequest(
                batch=message.batch, grants=_encode_grants(message.grants) if message.grants else None,
                keep=None if message.keep is None else pb.Keep(sequences=message.keep))
        case Filter():
            return pb.FilterRequest(batch=message.batch, keep=pb.Keep(sequences=message.keep))
        case Concat():
            return pb.ConcatRequest(batches=message.batches)
        case PoolingStep():
            requests = [new_sequence.request for new_sequence in message.new_sequences]
            return pb.EmbedRequest(wanted=WANTED_BY_KIND[message.kind], adapters=_encode_adapters(requests),
                                   num_tokens=[len(request.prompt) for request in requests],
                                   tokens=chain.from_iterable(request.prompt for request in requests))


def _encode_sequences(new_sequences: tuple[NewSequence, ...]) -> pb.Sequences:
    requests = [new_sequence.request for new_sequence in new_sequences]
    return pb.Sequences(
        ids=[n.sequence_id for n in new_sequences],
        num_tokens=[len(n.request.prompt) + len(n.generated) for n in new_sequences],
        num_prompt_tokens=[len(request.prompt) for request in requests],
        tokens=chain.from_iterable(chain(n.request.prompt, n.generated) for n in new_sequences),
        num_cached=[n.num_cached for n in new_sequences],
        num_blocks=[len(n.blocks) for n in new_sequences],
        blocks=chain.from_iterable(n.blocks for n in new_sequences),
        keys=[request.sampling_key for request in requests],
        sampling=_encode_sampling(requests),
        prompt_logprobs=_encode_column([request.prompt_logprobs for request in requests], False),
        adapters=_encode_adapters(requests),
        grammars=_encode_column([request.grammar.id if request.grammar else 0 for request in requests], 0),
        num_prompt_top_tokens=_encode_column([request.num_prompt_top_tokens for request in requests], 0),
    )


def _encode_adapters(requests: list[Request]) -> list[int]:
    return _encode_column([request.adapter.id if request.adapter else 0 for request in requests], 0)


def _encode_sampling(requests: list[Request]) -> pb.Sampling:
    """Encode sampling parameters; a field that holds a tuple becomes a ragged column. End tokens are sent only for
    sequences that must not always be able to choose them (`min_tokens` or a grammar)."""
    columns = _encode_ragged_column("end_tokens", [
        sorted(r.end_tokens) if r.sampling.min_tokens or r.grammar else [] for r in requests])
    rows = [request.sampling for request in requests]
    if rows.count(NO_SAMPLING) < len(rows):
        for name, default, get_value in SAMPLING_FIELDS:
            values = [*map(get_value, rows)]
            if values.count(default) < len(values):
                columns |= _encode_ragged_column(name, values) if isinstance(default, tuple) else {name: values}
    return pb.Sampling(**columns)


def _encode_ragged_column(name: str, rows: Collection[Collection[T]]) -> dict[str, list[Any]]:
    return {f"num_{name}": _encode_column([len(row) for row in rows], 0), name: [*chain.from_iterable(rows)]}


def _encode_column(values: list[T], default: T) -> list[T]:
    """Return the column, or an empty one if every row has the default."""
    return values if values.count(default) < len(values) else []


def _encode_grants(grants: tuple[BlockGrant, ...]) -> pb.Grants:
    return pb.Grants(sequences=[g.sequence_id for g in grants], num_blocks=[len(g.blocks) for g in grants],
                     blocks=chain.from_iterable(g.blocks for g in grants))
