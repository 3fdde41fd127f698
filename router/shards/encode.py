"""Encoding of the scheduler's messages into the columns of proto/shard.proto, and decoding of the answers.

Rows become columns here and nowhere else. Shards are not trusted: an answer with unknown or missing sequences, wrong
counts or a token outside the vocabulary raises `InvalidShardAnswer`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from itertools import chain
from typing import Any, TypeVar

from router.config import RouterConfig
from router.model import ModelInfo, StepMeasurement
from router.request import LoadableResource, Request, RequestKind, SamplingParams
from router.scheduler.plan import (
    BlockGrant,
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    PromptChunk,
    PromptLogprobs,
    ShardMessage,
    StepPlan,
    StepResult,
    StepResultRow,
)
from shard.pb import shard_pb2 as pb

FAILURE_REASONS = {
    pb.NON_FINITE: "the model's output was not a number",
    pb.GRAMMAR: "the grammar had no way on",
    pb.NO_ROOM: "the model has no position left",
}
RESOURCE_KINDS: dict[str, "pb.Kind"] = {"adapter": pb.KIND_ADAPTER, "grammar": pb.KIND_GRAMMAR}
POOLING_OUTPUTS: dict[RequestKind, "pb.Wanted"] = {RequestKind.EMBED: pb.VECTORS, RequestKind.CLASSIFY: pb.LABELS}
SAMPLING_DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}

T = TypeVar("T")

TraceparentLookup = Callable[[int], str]  # of a sequence, by its number
ShardRequest = pb.PrefillRequest | pb.DecodeRequest | pb.FilterRequest | pb.ConcatRequest | pb.EmbedRequest


class InvalidShardAnswer(Exception):
    """Invalid answer of a shard."""


# -- to the shards


def no_traceparent(_sequence: int) -> str:
    return ""


def encode_plan(plan: StepPlan, get_traceparent: TraceparentLookup = no_traceparent) -> list[ShardRequest]:
    """Encode the messages of a plan. `get_traceparent` returns the parent span of a sequence's chunks."""
    first_number = plan.last_message_number - len(plan.messages) + 1
    return [_encode_message(message, plan.epoch, first_number + index, get_traceparent)
            for index, message in enumerate(plan.messages)]


def _encode_message(message: ShardMessage, epoch: int, message_number: int,
                    get_traceparent: TraceparentLookup) -> ShardRequest:
    match message:
        case Prefill():
            return pb.PrefillRequest(epoch=epoch, order=message_number, batch=message.batch,
                                     sequences=_encode_sequences(message.new_sequences),
                                     chunks=_encode_chunks(message.chunks, get_traceparent),
                                     alongside=message.includes_decodes, grants=_encode_grants(message.grants),
                                     keep=_encode_keep(message.keep))
        case Decode():
            return pb.DecodeRequest(epoch=epoch, order=message_number, batch=message.batch,
                                    grants=_encode_grants(message.grants), keep=_encode_keep(message.keep))
        case Filter():
            return pb.FilterRequest(epoch=epoch, order=message_number, batch=message.batch,
                                    keep=_encode_keep(message.keep))
        case Concat():
            return pb.ConcatRequest(epoch=epoch, order=message_number, batches=message.batches)
        case PoolingStep():
            return _encode_embed(message, epoch, message_number)


def _encode_embed(message: PoolingStep, epoch: int, message_number: int) -> pb.EmbedRequest:
    requests = [newcomer.request for newcomer in message.new_sequences]
    return pb.EmbedRequest(epoch=epoch, order=message_number, wanted=POOLING_OUTPUTS[message.kind],
                           num_tokens=[len(r.prompt) for r in requests],
                           tokens=chain.from_iterable(request.prompt for request in requests),
                           adapters=_encode_adapters(requests))


def _encode_sequences(newcomers: tuple[NewSequence, ...]) -> pb.Sequences | None:
    if not newcomers:
        return None
    requests = [newcomer.request for newcomer in newcomers]
    return pb.Sequences(
        ids=[n.sequence_id for n in newcomers],
        num_tokens=[len(n.request.prompt) + len(n.generated) for n in newcomers],
        num_prompt_tokens=[len(request.prompt) for request in requests],
        tokens=chain.from_iterable(chain(n.request.prompt, n.generated) for n in newcomers),
        num_cached=[n.num_cached for n in newcomers],
        num_blocks=[len(n.blocks) for n in newcomers],
        blocks=chain.from_iterable(n.blocks for n in newcomers),
        keys=[request.random_key for request in requests],
        sampling=_encode_sampling(requests),
        prompt_logprobs=_encode_column([request.prompt_logprobs for request in requests], False),
        adapters=_encode_adapters(requests),
        grammars=_encode_column([request.grammar.id if request.grammar else 0 for request in requests], 0),
    )


def _encode_adapters(requests: list[Request]) -> list[int]:
    return _encode_column([request.adapter.id if request.adapter else 0 for request in requests], 0)


def _encode_sampling(requests: list[Request]) -> pb.Sampling:
    """Encode sampling parameters; a field that holds a tuple becomes a ragged column.

    End tokens are sent only for sequences that must not always be able to choose them (`min_tokens` or a grammar).
    """
    columns = _encode_ragged_column("end_tokens", [
        sorted(r.end_tokens) if r.sampling.min_tokens or r.grammar else [] for r in requests])
    for name, default in SAMPLING_DEFAULTS.items():
        values = [getattr(request.sampling, name) for request in requests]
        columns |= (_encode_ragged_column(name, values) if isinstance(default, tuple)
                    else {name: _encode_column(values, default)})
    return pb.Sampling(**columns)


def _encode_ragged_column(name: str, rows: Collection[Collection[T]]) -> dict[str, list[Any]]:
    return {f"num_{name}": _encode_column([len(row) for row in rows], 0), name: [*chain.from_iterable(rows)]}


def _encode_column(values: list[T], default: T) -> list[T]:
    """Return the column, or an empty one if every row has the default."""
    return values if any(value != default for value in values) else []


def _encode_chunks(chunks: tuple[PromptChunk, ...], get_traceparent: TraceparentLookup) -> pb.Chunks:
    return pb.Chunks(sequences=[c.sequence_id for c in chunks], starts=[c.start for c in chunks],
                     lengths=[c.length for c in chunks],
                     traceparents=_encode_column([get_traceparent(c.sequence_id) for c in chunks], ""))


def _encode_grants(grants: tuple[BlockGrant, ...]) -> pb.Grants | None:
    if not grants:
        return None
    return pb.Grants(sequences=[g.sequence_id for g in grants], num_blocks=[len(g.blocks) for g in grants],
                     blocks=chain.from_iterable(g.blocks for g in grants))


def _encode_keep(kept_sequences: tuple[int, ...] | None) -> pb.Keep | None:
    return None if kept_sequences is None else pb.Keep(sequences=kept_sequences)


def make_warmup_request(config: RouterConfig, max_total_tokens: int) -> pb.WarmupRequest:
    return pb.WarmupRequest(
        block_size=config.block_size, max_prefill_tokens=config.max_batch_prefill_tokens,
        max_batch_size=config.max_batch_size, max_total_tokens=max_total_tokens,
        max_cache_tokens=config.max_batch_total_tokens or 0)


def make_load_request(resource: LoadableResource, source: str, epoch: int) -> pb.LoadRequest:
    return pb.LoadRequest(epoch=epoch, kind=RESOURCE_KINDS[resource.kind], id=resource.id, source=source)


def make_unload_request(resource: LoadableResource, epoch: int) -> pb.UnloadRequest:
    return pb.UnloadRequest(epoch=epoch, kind=RESOURCE_KINDS[resource.kind], id=resource.id)


# -- from the shards


def combine_rank_infos(infos: list[pb.InfoAnswer]) -> ModelInfo:
    """Return the ranks' descriptions of themselves as one. Raises InvalidShardAnswer if they serve different models.

    The smallest cache of all ranks counts.
    """
    first = infos[0]
    for info in infos[1:]:
        if (info.model, info.vocabulary_size, info.max_positions) != (first.model, first.vocabulary_size,
                                                                      first.max_positions):
            raise InvalidShardAnswer(f"rank {info.rank} serves another model than rank {first.rank}")
    warmup = first.warmup
    return ModelInfo(
        model=first.model, device=first.device, dtype=first.dtype, vocabulary_size=first.vocabulary_size,
        max_positions=first.max_positions, block_size=warmup.block_size,
        num_blocks=min(info.warmup.num_blocks for info in infos), tokens_per_step=max(1, first.tokens_per_step),
        mixed_steps=first.mixed_steps, world_size=first.world_size, exact=all(info.exact for info in infos),
        measurements=tuple(StepMeasurement(*row) for row in zip(
            warmup.rows, warmup.chunk_tokens, warmup.context, warmup.seconds, strict=True)),
        cache_bytes=sum(info.warmup.cache_bytes for info in infos), cache_size_note=warmup.why,
        grammars=all(info.grammars for info in infos), adapters=all(info.adapters for info in infos),
        adapter_bytes=min(info.warmup.adapter_bytes for info in infos), generation=first.generation,
        embeddings=first.embeddings, classification=first.classification, labels=tuple(first.labels))


def loaded_resources(info: pb.InfoAnswer) -> frozenset[LoadableResource]:
    """Return the resources that a rank has loaded."""
    ids_by_kind = {"adapter": info.loaded_adapters, "grammar": info.loaded_grammars}
    return frozenset(LoadableResource(kind, number) for kind in RESOURCE_KINDS for number in ids_by_kind[kind])


def decode_step_answer(answer: pb.StepAnswer, plan: StepPlan, model_info: ModelInfo) -> StepResult:
    """Decode rank 0's answer to the last message of a plan. Raises InvalidShardAnswer."""
    check_epoch_and_number(answer, plan)
    check_forward_seconds(answer)
    rows = _decode_rows(answer, model_info)
    failed = decode_failures(answer)
    if (not set(plan.members_with_output) <= rows.keys() | failed.keys()
        or not rows.keys() <= set(plan.members_with_output) - failed.keys()):
        raise InvalidShardAnswer(
            f"tokens for {[*rows]} and failures of {[*failed]} where {[*plan.members_with_output]} were expected")
    if not failed.keys() <= set(plan.members):
        raise InvalidShardAnswer(f"failures of {[*failed]} in a step of {[*plan.members]}")
    return StepResult(plan.epoch, answer.forward_seconds, rows, failed, _decode_prompt_logprobs(answer, plan))


def _decode_rows(answer: pb.StepAnswer, model_info: ModelInfo) -> dict[int, StepResultRow]:
    sequence_ids, tokens, logprobs = list(answer.sequences), list(answer.tokens), list(answer.logprobs)
    counts = list(answer.num_tokens) or [1] * len(sequence_ids)
    if (not len(counts) == len(sequence_ids) == len(set(sequence_ids))
        or not sum(counts) == len(tokens) == len(logprobs)):
        raise InvalidShardAnswer(
            f"{len(sequence_ids)} rows with {sum(counts)} tokens, {len(tokens)} ids and {len(logprobs)} logprobs")
    if tokens and max(tokens) >= model_info.vocabulary_size:
        raise InvalidShardAnswer(f"token {max(tokens)} outside the vocabulary of {model_info.vocabulary_size}")
    if counts and not 1 <= min(counts) <= max(counts) <= model_info.tokens_per_step:
        raise InvalidShardAnswer(
            f"{min(counts)} to {max(counts)} tokens in a row, where 1 to {model_info.tokens_per_step} are possible")
    if len(tokens) == len(sequence_ids) and not answer.num_top_tokens:
        return {number: StepResultRow((token,), (logprob,))
                for number, token, logprob in zip(sequence_ids, tokens, logprobs, strict=True)}
    pieces = zip(split_by_counts(tokens, counts), split_by_counts(logprobs, counts),
                 split_by_counts(_decode_top_tokens(answer, len(tokens), model_info), counts), strict=True)
    return {number: StepResultRow(*piece) for number, piece in zip(sequence_ids, pieces, strict=True)}


def _decode_top_tokens(answer: pb.StepAnswer, num_tokens: int, model_info: ModelInfo) -> list[list[tuple[int, float]]]:
    counts, ids, logprobs = answer.num_top_tokens, answer.top_tokens, answer.top_logprobs
    if not counts:
        return []
    if len(counts) != num_tokens or not sum(counts) == len(ids) == len(logprobs):
        raise InvalidShardAnswer(f"{len(counts)} counts of top tokens for {num_tokens} tokens, {len(ids)} ids")
    if ids and max(ids) >= model_info.vocabulary_size:
        raise InvalidShardAnswer(f"top token {max(ids)} outside the vocabulary of {model_info.vocabulary_size}")
    pairs = list(zip(ids, logprobs, strict=True))
    return list(split_by_counts(pairs, counts))


def decode_acknowledgement(answer: pb.Acknowledgement, plan: StepPlan) -> StepResult:
    """Decode the answer to a plan without a step. Raises InvalidShardAnswer."""
    check_epoch_and_number(answer, plan)
    return StepResult(plan.epoch, 0.0, {}, {})


def check_epoch_and_number(answer: pb.StepAnswer | pb.EmbedAnswer | pb.Acknowledgement, plan: StepPlan) -> None:
    if (answer.epoch, answer.order) != (plan.epoch, plan.last_message_number):
        raise InvalidShardAnswer(
            f"answer {answer.epoch}/{answer.order} to message {plan.epoch}/{plan.last_message_number}")


def check_forward_seconds(answer: pb.StepAnswer | pb.EmbedAnswer) -> None:
    if not 0.0 <= answer.forward_seconds < 1e6:
        raise InvalidShardAnswer(f"a step that took {answer.forward_seconds} seconds")


def decode_failures(answer: pb.StepAnswer | pb.EmbedAnswer) -> dict[int, str]:
    """Return the reasons of failures, by sequence number (for an EmbedAnswer, by index)."""
    if len(answer.failed) != len(answer.failures):
        raise InvalidShardAnswer(f"{len(answer.failed)} failed sequences with {len(answer.failures)} reasons")
    reasons = [FAILURE_REASONS.get(failure, "the shard gave no reason") for failure in answer.failures]
    return dict(zip(answer.failed, reasons, strict=True))


def _decode_prompt_logprobs(answer: pb.StepAnswer, plan: StepPlan) -> list[PromptLogprobs]:
    sequence_ids, starts, counts = answer.prompt_sequences, answer.prompt_starts, answer.num_prompt_logprobs
    if not len(sequence_ids) == len(starts) == len(counts) or sum(counts) != len(answer.prompt_logprobs):
        raise InvalidShardAnswer(
            f"{len(sequence_ids)} prompts with {sum(counts)} logprobs, {len(answer.prompt_logprobs)} values")
    if not set(sequence_ids) <= set(plan.members):
        raise InvalidShardAnswer(f"logprobs of the prompts of {[*sequence_ids]} in a step of {[*plan.members]}")
    pieces = split_by_counts(list(answer.prompt_logprobs), counts)
    return [PromptLogprobs(*row) for row in zip(sequence_ids, starts, pieces, strict=True)]


def split_by_counts(values: list[T], counts: Iterable[int]) -> Iterable[list[T]]:
    start = 0
    for count in counts:
        yield values[start:start + count]
        start += count
