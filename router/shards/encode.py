"""Encoding of the scheduler's messages into the columns of proto/shard.proto, and decoding of the answers.

Rows become columns here and nowhere else. Shards are not trusted: an answer with unknown or missing sequences, wrong
counts or a token outside the vocabulary raises `Defect`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from itertools import chain
from typing import Any, TypeVar

from router.config import RouterConfig
from router.request import Request, Resource, SamplingParams, Wish
from router.scheduler.plan import (
    Answer,
    AnswerRow,
    Chunk,
    Concat,
    Decode,
    Embed,
    Filter,
    Grant,
    Measurement,
    Message,
    ModelFacts,
    Newcomer,
    Plan,
    Prefill,
    PromptLogprobs,
)
from shard.pb import shard_pb2 as pb

FAILURES = {
    pb.NON_FINITE: "the model's output was not a number",
    pb.GRAMMAR: "the grammar had no way on",
    pb.NO_ROOM: "the model has no position left",
}
KINDS: dict[str, "pb.Kind"] = {"adapter": pb.KIND_ADAPTER, "grammar": pb.KIND_GRAMMAR}
WANTED: dict[Wish, "pb.Wanted"] = {Wish.VECTOR: pb.VECTORS, Wish.LABELS: pb.LABELS}
SAMPLING = {field.name: field.default for field in fields(SamplingParams)}

T = TypeVar("T")

Traceparent = Callable[[int], str]  # of a sequence, by its number
Wire = pb.PrefillRequest | pb.DecodeRequest | pb.FilterRequest | pb.ConcatRequest | pb.EmbedRequest


class Defect(Exception):
    """Invalid answer of a shard."""


# -- to the shards


def of_no_trace(_sequence: int) -> str:
    return ""


def encode(plan: Plan, traceparent: Traceparent = of_no_trace) -> list[Wire]:
    """Encode the messages of a plan. `traceparent` returns the parent span of a sequence's chunks."""
    first = plan.order - len(plan.messages) + 1
    return [_encode(message, plan.epoch, first + index, traceparent) for index, message in enumerate(plan.messages)]


def _encode(message: Message, epoch: int, order: int, traceparent: Traceparent) -> Wire:
    match message:
        case Prefill():
            return pb.PrefillRequest(
                epoch=epoch, order=order, batch=message.batch, sequences=_sequences(message.newcomers),
                chunks=_chunks(message.chunks, traceparent), alongside=message.alongside,
                grants=_grants(message.grants), keep=_keep(message.keep))
        case Decode():
            return pb.DecodeRequest(epoch=epoch, order=order, batch=message.batch, grants=_grants(message.grants),
                                    keep=_keep(message.keep))
        case Filter():
            return pb.FilterRequest(epoch=epoch, order=order, batch=message.batch, keep=_keep(message.keep))
        case Concat():
            return pb.ConcatRequest(epoch=epoch, order=order, batches=message.batches)
        case Embed():
            return _embed(message, epoch, order)


def _embed(message: Embed, epoch: int, order: int) -> pb.EmbedRequest:
    requests = [newcomer.request for newcomer in message.newcomers]
    return pb.EmbedRequest(
        epoch=epoch, order=order, wanted=WANTED[message.wish], num_tokens=[len(r.prompt) for r in requests],
        tokens=chain.from_iterable(request.prompt for request in requests), adapters=_adapters(requests))


def _sequences(newcomers: tuple[Newcomer, ...]) -> pb.Sequences | None:
    if not newcomers:
        return None
    requests = [newcomer.request for newcomer in newcomers]
    return pb.Sequences(
        ids=[n.sequence for n in newcomers],
        num_tokens=[len(n.request.prompt) + len(n.generated) for n in newcomers],
        num_prompt_tokens=[len(request.prompt) for request in requests],
        tokens=chain.from_iterable(chain(n.request.prompt, n.generated) for n in newcomers),
        num_cached=[n.num_cached for n in newcomers],
        num_blocks=[len(n.blocks) for n in newcomers],
        blocks=chain.from_iterable(n.blocks for n in newcomers),
        keys=[request.key for request in requests],
        sampling=_sampling(requests),
        prompt_logprobs=_column([request.prompt_logprobs for request in requests], False),
        adapters=_adapters(requests),
        grammars=_column([request.grammar.id if request.grammar else 0 for request in requests], 0),
    )


def _adapters(requests: list[Request]) -> list[int]:
    return _column([request.adapter.id if request.adapter else 0 for request in requests], 0)


def _sampling(requests: list[Request]) -> pb.Sampling:
    """Encode sampling parameters; a field that holds a tuple becomes a ragged column.

    End tokens are sent only for sequences that must not always be able to choose them (`min_tokens` or a grammar).
    """
    columns = _ragged("end_tokens", [
        sorted(r.end_tokens) if r.sampling.min_tokens or r.grammar else [] for r in requests])
    for name, default in SAMPLING.items():
        values = [getattr(request.sampling, name) for request in requests]
        columns |= _ragged(name, values) if isinstance(default, tuple) else {name: _column(values, default)}
    return pb.Sampling(**columns)


def _ragged(name: str, rows: Collection[Collection[T]]) -> dict[str, list[Any]]:
    return {f"num_{name}": _column([len(row) for row in rows], 0), name: [*chain.from_iterable(rows)]}


def _column(values: list[T], default: T) -> list[T]:
    """Return the column, or an empty one if every row has the default."""
    return values if any(value != default for value in values) else []


def _chunks(chunks: tuple[Chunk, ...], traceparent: Traceparent) -> pb.Chunks:
    return pb.Chunks(sequences=[c.sequence for c in chunks], starts=[c.start for c in chunks],
                     lengths=[c.length for c in chunks],
                     traceparents=_column([traceparent(c.sequence) for c in chunks], ""))


def _grants(grants: tuple[Grant, ...]) -> pb.Grants | None:
    if not grants:
        return None
    return pb.Grants(sequences=[g.sequence for g in grants], num_blocks=[len(g.blocks) for g in grants],
                     blocks=chain.from_iterable(g.blocks for g in grants))


def _keep(sequences: tuple[int, ...] | None) -> pb.Keep | None:
    return None if sequences is None else pb.Keep(sequences=sequences)


def warmup_request(config: RouterConfig, max_total_tokens: int) -> pb.WarmupRequest:
    return pb.WarmupRequest(
        block_size=config.block_size, max_prefill_tokens=config.max_batch_prefill_tokens,
        max_batch_size=config.max_batch_size, max_total_tokens=max_total_tokens,
        max_cache_tokens=config.max_batch_total_tokens or 0)


def load_request(resource: Resource, source: str, epoch: int) -> pb.LoadRequest:
    return pb.LoadRequest(epoch=epoch, kind=KINDS[resource.kind], id=resource.id, source=source)


def unload_request(resource: Resource, epoch: int) -> pb.UnloadRequest:
    return pb.UnloadRequest(epoch=epoch, kind=KINDS[resource.kind], id=resource.id)


# -- from the shards


def facts(infos: list[pb.InfoAnswer]) -> ModelFacts:
    """Return the ranks' descriptions of themselves as one. Raises Defect if they serve different models.

    The smallest cache of all ranks counts.
    """
    first = infos[0]
    for info in infos[1:]:
        if (info.model, info.vocabulary_size, info.max_positions) != (first.model, first.vocabulary_size,
                                                                     first.max_positions):
            raise Defect(f"rank {info.rank} serves another model than rank {first.rank}")
    warm = first.warmup
    return ModelFacts(
        model=first.model, device=first.device, dtype=first.dtype, vocabulary_size=first.vocabulary_size,
        max_positions=first.max_positions, block_size=warm.block_size,
        num_blocks=min(info.warmup.num_blocks for info in infos), tokens_per_step=max(1, first.tokens_per_step),
        mixed_steps=first.mixed_steps, world_size=first.world_size, exact=all(info.exact for info in infos),
        measurements=tuple(Measurement(*row) for row in zip(
            warm.rows, warm.chunk_tokens, warm.context, warm.seconds, strict=True)),
        cache_bytes=sum(info.warmup.cache_bytes for info in infos), why=warm.why,
        grammars=all(info.grammars for info in infos), adapters=all(info.adapters for info in infos),
        adapter_bytes=min(info.warmup.adapter_bytes for info in infos), generation=first.generation,
        embeddings=first.embeddings, classification=first.classification, labels=tuple(first.labels))


def loaded(info: pb.InfoAnswer) -> frozenset[Resource]:
    """Return the resources that a rank has loaded."""
    numbers = {"adapter": info.loaded_adapters, "grammar": info.loaded_grammars}
    return frozenset(Resource(kind, number) for kind in KINDS for number in numbers[kind])


def decode(answer: pb.StepAnswer, plan: Plan, model: ModelFacts) -> Answer:
    """Decode rank 0's answer to the last message of a plan. Raises Defect."""
    check_place(answer, plan)
    check_time(answer)
    rows = _rows(answer, model)
    failed = failures(answer)
    if not set(plan.expects) <= rows.keys() | failed.keys() or not rows.keys() <= set(plan.expects) - failed.keys():
        raise Defect(f"tokens for {[*rows]} and failures of {[*failed]} where {[*plan.expects]} were expected")
    if not failed.keys() <= set(plan.members):
        raise Defect(f"failures of {[*failed]} in a step of {[*plan.members]}")
    return Answer(plan.epoch, answer.forward_seconds, rows, failed, _prompt_logprobs(answer, plan))


def _rows(answer: pb.StepAnswer, model: ModelFacts) -> dict[int, AnswerRow]:
    numbers, tokens, logprobs = list(answer.sequences), list(answer.tokens), list(answer.logprobs)
    counts = list(answer.num_tokens) or [1] * len(numbers)
    if not len(counts) == len(numbers) == len(set(numbers)) or not sum(counts) == len(tokens) == len(logprobs):
        raise Defect(f"{len(numbers)} rows with {sum(counts)} tokens, {len(tokens)} ids and {len(logprobs)} logprobs")
    if tokens and max(tokens) >= model.vocabulary_size:
        raise Defect(f"token {max(tokens)} outside the vocabulary of {model.vocabulary_size}")
    if counts and not 1 <= min(counts) <= max(counts) <= model.tokens_per_step:
        raise Defect(f"{min(counts)} to {max(counts)} tokens in a row, where 1 to {model.tokens_per_step} are possible")
    if len(tokens) == len(numbers) and not answer.num_top_tokens:
        return {number: AnswerRow((token,), (logprob,))
                for number, token, logprob in zip(numbers, tokens, logprobs, strict=True)}
    pieces = zip(cut(tokens, counts), cut(logprobs, counts), cut(_top(answer, len(tokens), model), counts), strict=True)
    return {number: AnswerRow(*piece) for number, piece in zip(numbers, pieces, strict=True)}


def _top(answer: pb.StepAnswer, num_tokens: int, model: ModelFacts) -> list[list[tuple[int, float]]]:
    counts, ids, logprobs = answer.num_top_tokens, answer.top_tokens, answer.top_logprobs
    if not counts:
        return []
    if len(counts) != num_tokens or not sum(counts) == len(ids) == len(logprobs):
        raise Defect(f"{len(counts)} counts of top tokens for {num_tokens} tokens, {len(ids)} ids")
    if ids and max(ids) >= model.vocabulary_size:
        raise Defect(f"top token {max(ids)} outside the vocabulary of {model.vocabulary_size}")
    pairs = list(zip(ids, logprobs, strict=True))
    return list(cut(pairs, counts))


def acknowledged(answer: pb.Acknowledgement, plan: Plan) -> Answer:
    """Decode the answer to a plan without a step. Raises Defect."""
    check_place(answer, plan)
    return Answer(plan.epoch, 0.0, {}, {})


def check_place(answer: pb.StepAnswer | pb.EmbedAnswer | pb.Acknowledgement, plan: Plan) -> None:
    if (answer.epoch, answer.order) != (plan.epoch, plan.order):
        raise Defect(f"answer {answer.epoch}/{answer.order} to message {plan.epoch}/{plan.order}")


def check_time(answer: pb.StepAnswer | pb.EmbedAnswer) -> None:
    if not 0.0 <= answer.forward_seconds < 1e6:
        raise Defect(f"a step that took {answer.forward_seconds} seconds")


def failures(answer: pb.StepAnswer | pb.EmbedAnswer) -> dict[int, str]:
    """Return the reasons of failures, by sequence number (for an EmbedAnswer, by index)."""
    if len(answer.failed) != len(answer.failures):
        raise Defect(f"{len(answer.failed)} failed sequences with {len(answer.failures)} reasons")
    reasons = [FAILURES.get(failure, "the shard gave no reason") for failure in answer.failures]
    return dict(zip(answer.failed, reasons, strict=True))


def _prompt_logprobs(answer: pb.StepAnswer, plan: Plan) -> list[PromptLogprobs]:
    numbers, starts, counts = answer.prompt_sequences, answer.prompt_starts, answer.num_prompt_logprobs
    if not len(numbers) == len(starts) == len(counts) or sum(counts) != len(answer.prompt_logprobs):
        raise Defect(f"{len(numbers)} prompts with {sum(counts)} logprobs, {len(answer.prompt_logprobs)} values")
    if not set(numbers) <= set(plan.members):
        raise Defect(f"logprobs of the prompts of {[*numbers]} in a step of {[*plan.members]}")
    pieces = cut(list(answer.prompt_logprobs), counts)
    return [PromptLogprobs(*row) for row in zip(numbers, starts, pieces, strict=True)]


def cut(values: list[T], counts: Iterable[int]) -> Iterable[list[T]]:
    start = 0
    for count in counts:
        yield values[start:start + count]
        start += count
