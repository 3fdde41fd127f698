"""Conversion between the scheduler's messages, which are rows, and those of proto/shard.proto, which are columns.
Shards are not trusted: their answers are checked."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from itertools import accumulate, chain
from math import isfinite
from operator import attrgetter
from typing import Any, TypeVar

from router.model_info import ModelInfo
from router.request import (
    ADAPTER,
    GRAMMAR,
    PoolingOutput,
    Request,
    RequestKind,
    SamplingParams,
    TokenClassificationOutput,
)
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.shard_messages import (
    BlockGrant,
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    PromptLogprobs,
    ShardMessage,
    StepPlan,
    StepResult,
    StepResultRow,
)
from router.shards.failures import ShardsLost
from shard.pb import shard_pb2 as pb

RESOURCE_KINDS: dict[str, "pb.Kind"] = {ADAPTER: pb.KIND_ADAPTER, GRAMMAR: pb.KIND_GRAMMAR}
WANTED_BY_KIND: dict[RequestKind, "pb.Wanted"] = {RequestKind.EMBED: pb.VECTORS, RequestKind.CLASSIFY: pb.LABELS}
NO_SAMPLING = SamplingParams()
SAMPLING_FIELDS = [(field.name, field.default, attrgetter(field.name)) for field in fields(SamplingParams)]
FAILURE_REASONS = {
    pb.NON_FINITE: "the model's output was not a number",
    pb.GRAMMAR: "the grammar had no way on",
    pb.NO_ROOM: "the model has no position left",
}

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
        num_cached=[n.num_cached_tokens for n in new_sequences],
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


class InvalidShardAnswer(ShardsLost):
    """A shard's answer contradicts the plan or the model, such as by a token outside the vocabulary."""

    def __init__(self, defect: str) -> None:
        super().__init__(ShardLossReason.DEFECT, f"an answer makes no sense: {defect}")


def decode_answer(answer: Any, plan: StepPlan, model_info: ModelInfo) -> StepResult:
    """Decode rank 0's answer to the last message of a plan. Raises InvalidShardAnswer."""
    if (answer.epoch, answer.order) != (plan.epoch, plan.last_message_number):
        raise InvalidShardAnswer(
            f"answer {answer.epoch}/{answer.order} to message {plan.epoch}/{plan.last_message_number}")
    if isinstance(answer, pb.Acknowledgement):  # to a plan without a step
        return StepResult(plan.epoch, 0.0, {}, {})
    if not 0.0 <= answer.forward_seconds < 1e6:
        raise InvalidShardAnswer(f"a step that took {answer.forward_seconds} seconds")
    if isinstance(answer, pb.EmbedAnswer):
        return _decode_embed_answer(answer, plan, model_info)
    return _decode_step_answer(answer, plan, model_info)


def _decode_step_answer(answer: pb.StepAnswer, plan: StepPlan, model_info: ModelInfo) -> StepResult:
    rows = _decode_rows(answer, model_info)
    failed = _decode_failure_reasons(answer)
    if (not set(plan.output_ids) <= rows.keys() | failed.keys()
        or not rows.keys() <= set(plan.output_ids) - failed.keys()):
        raise InvalidShardAnswer(
            f"tokens for {[*rows]} and failures of {[*failed]} where {[*plan.output_ids]} were expected")
    if not failed.keys() <= set(plan.member_ids):
        raise InvalidShardAnswer(f"failures of {[*failed]} in a step of {[*plan.member_ids]}")
    return StepResult(plan.epoch, answer.forward_seconds, rows, failed,
                      _decode_prompt_logprobs(answer, plan, model_info))


def _decode_rows(answer: pb.StepAnswer, model_info: ModelInfo) -> dict[int, StepResultRow]:
    sequence_ids, tokens, logprobs = list(answer.sequences), list(answer.tokens), list(answer.logprobs)
    counts = list(answer.num_tokens) or [1] * len(sequence_ids)
    if (not len(counts) == len(sequence_ids) == len(set(sequence_ids))
        or not sum(counts) == len(tokens) == len(logprobs)):
        raise InvalidShardAnswer(
            f"{len(sequence_ids)} rows with {sum(counts)} tokens, {len(tokens)} ids and {len(logprobs)} logprobs")
    if tokens and max(tokens) >= model_info.vocabulary_size:
        raise InvalidShardAnswer(f"token {max(tokens)} outside the vocabulary of {model_info.vocabulary_size}")
    if not all(map(isfinite, logprobs)):  # JSON has no such numbers
        raise InvalidShardAnswer("a logprob that is no number")
    if counts and not 1 <= min(counts) <= max(counts) <= model_info.tokens_per_step:
        raise InvalidShardAnswer(
            f"{min(counts)} to {max(counts)} tokens in a row, where 1 to {model_info.tokens_per_step} are possible")
    if len(tokens) == len(sequence_ids) and not answer.num_top_tokens:
        return {sequence_id: StepResultRow((token,), (logprob,))
                for sequence_id, token, logprob in zip(sequence_ids, tokens, logprobs, strict=True)}
    pieces = zip(split_by_counts(tokens, counts), split_by_counts(logprobs, counts),
                 split_by_counts(_decode_top_tokens(answer, len(tokens), model_info), counts), strict=True)
    return {sequence_id: StepResultRow(*piece) for sequence_id, piece in zip(sequence_ids, pieces, strict=True)}


def _decode_top_tokens(answer: pb.StepAnswer, num_tokens: int, model_info: ModelInfo) -> list[list[tuple[int, float]]]:
    counts, ids, logprobs = answer.num_top_tokens, answer.top_tokens, answer.top_logprobs
    if not counts:
        return []
    if len(counts) != num_tokens or not sum(counts) == len(ids) == len(logprobs):
        raise InvalidShardAnswer(f"{len(counts)} counts of top tokens for {num_tokens} tokens, {len(ids)} ids")
    if ids and max(ids) >= model_info.vocabulary_size:
        raise InvalidShardAnswer(f"top token {max(ids)} outside the vocabulary of {model_info.vocabulary_size}")
    if not all(map(isfinite, logprobs)):
        raise InvalidShardAnswer("a logprob of a top token that is no number")
    return split_by_counts(list(zip(ids, logprobs, strict=True)), counts)


def _decode_failure_reasons(answer: pb.StepAnswer | pb.EmbedAnswer) -> dict[int, str]:
    """Return the reasons of failures, by sequence id (for an EmbedAnswer, by index)."""
    if len(answer.failed) != len(answer.failures):
        raise InvalidShardAnswer(f"{len(answer.failed)} failed sequences with {len(answer.failures)} reasons")
    if not answer.failed:
        return {}
    return {place: FAILURE_REASONS.get(failure, "the shard gave no reason")
            for place, failure in zip(answer.failed, answer.failures, strict=True)}


def _decode_prompt_logprobs(answer: pb.StepAnswer, plan: StepPlan, model_info: ModelInfo) -> list[PromptLogprobs]:
    sequence_ids, starts, counts = answer.prompt_sequences, answer.prompt_starts, answer.num_prompt_logprobs
    if not len(sequence_ids) == len(starts) == len(counts) or sum(counts) != len(answer.prompt_logprobs):
        raise InvalidShardAnswer(
            f"{len(sequence_ids)} prompts with {sum(counts)} logprobs, {len(answer.prompt_logprobs)} values")
    if not sequence_ids:
        return []
    if not set(sequence_ids) <= set(plan.member_ids):
        raise InvalidShardAnswer(f"logprobs of the prompts of {[*sequence_ids]} in a step of {[*plan.member_ids]}")
    pieces = split_by_counts(list(answer.prompt_logprobs), counts)
    tops = _decode_prompt_top_tokens(answer, model_info) if answer.num_prompt_top_tokens else [()] * len(pieces)
    return [PromptLogprobs(*row) for row in zip(sequence_ids, starts, pieces, tops, strict=True)]


def _decode_prompt_top_tokens(answer: pb.StepAnswer,
                              model_info: ModelInfo) -> list[Sequence[Sequence[tuple[int, float]]]]:
    """Return for each row the candidates of each of its logprobs; none for rows without any."""
    row_counts, counts = answer.num_prompt_top_tokens, answer.num_prompt_logprobs
    ids, logprobs = answer.prompt_top_tokens, answer.prompt_top_logprobs
    if len(row_counts) != len(counts) or not (
        len(ids) == len(logprobs) == sum(top * number for top, number in zip(row_counts, counts, strict=False))):
        raise InvalidShardAnswer(f"{len(counts)} prompts with candidates for {len(row_counts)}, {len(ids)} candidates "
                                 f"with {len(logprobs)} logprobs")
    if ids and max(ids) >= model_info.vocabulary_size:
        raise InvalidShardAnswer(f"top token {max(ids)} outside the vocabulary of {model_info.vocabulary_size}")
    by_row = split_by_counts(list(zip(ids, logprobs, strict=True)),
                             [top * number for top, number in zip(row_counts, counts, strict=True)])
    return [split_by_counts(row, [top] * number) if top else ()
            for row, top, number in zip(by_row, row_counts, counts, strict=True)]


def _decode_embed_answer(answer: pb.EmbedAnswer, plan: StepPlan, model_info: ModelInfo) -> StepResult:
    step = plan.messages[-1]
    assert isinstance(step, PoolingStep)
    reasons_by_index = _decode_failure_reasons(answer)
    if any(place >= len(plan.member_ids) for place in reasons_by_index):
        raise InvalidShardAnswer(f"failures of texts {[*reasons_by_index]}, where there are {len(plan.member_ids)}")
    succeeded = [new_sequence for place, new_sequence in enumerate(step.new_sequences) if place not in reasons_by_index]
    lengths = [len(new_sequence.request.prompt) for new_sequence in succeeded]
    rows = (_decode_vectors(answer, len(succeeded)) if step.kind is RequestKind.EMBED
            else _decode_token_labels(answer, lengths, model_info))
    outputs = dict(zip([new_sequence.sequence_id for new_sequence in succeeded], rows, strict=True))
    failed = {plan.member_ids[place]: why for place, why in reasons_by_index.items()}
    return StepResult(plan.epoch, answer.forward_seconds, {}, failed, pooling_outputs=outputs)


def _decode_vectors(answer: pb.EmbedAnswer, num_texts: int) -> Sequence[PoolingOutput]:
    values, width = list(answer.values), answer.width
    if len(values) != width * num_texts or (num_texts and not width):
        raise InvalidShardAnswer(f"{len(values)} values for {num_texts} embeddings of {width}")
    if not all(map(isfinite, values)):
        raise InvalidShardAnswer("an embedding with a value that is no number")
    return split_by_counts(values, [width] * num_texts)


def _decode_token_labels(answer: pb.EmbedAnswer, prompt_lengths: list[int],
                         model_info: ModelInfo) -> Sequence[PoolingOutput]:
    counts, labels, scores = list(answer.num_labels), list(answer.labels), list(answer.scores)
    if counts != prompt_lengths or not sum(counts) == len(labels) == len(scores):
        raise InvalidShardAnswer(
            f"{counts} labels for texts of {prompt_lengths} tokens, {len(labels)} numbers and {len(scores)} scores")
    if labels and max(labels) >= len(model_info.labels):
        raise InvalidShardAnswer(f"label {max(labels)}, where there are {len(model_info.labels)}")
    if not all(map(isfinite, scores)):
        raise InvalidShardAnswer("a score that is no number")
    return [*map(TokenClassificationOutput, split_by_counts(labels, counts), split_by_counts(scores, counts))]


def split_by_counts(values: list[T], counts: Sequence[int]) -> list[list[T]]:
    return [values[end - count:end] for count, end in zip(counts, accumulate(counts), strict=True)]
