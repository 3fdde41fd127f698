"""Decoding of embedding and classification answers, from columns to rows. Like all answers they are checked."""

from collections.abc import Iterator
from itertools import repeat
from math import isfinite

from router.model import ModelInfo, PoolingOutput, TokenLabels
from router.request import RequestKind
from router.scheduler.plan import PoolingStep, StepPlan, StepResult
from router.shards.encode import (
    InvalidShardAnswer,
    check_epoch_and_number,
    check_forward_seconds,
    decode_failures,
    split_by_counts,
)
from shard.pb import shard_pb2 as pb


def decode_embed_answer(answer: pb.EmbedAnswer, plan: StepPlan, model_info: ModelInfo) -> StepResult:
    """Decode rank 0's answer to a plan whose step is a pooling step. Raises InvalidShardAnswer."""
    check_epoch_and_number(answer, plan)
    check_forward_seconds(answer)
    step = plan.messages[-1]
    assert isinstance(step, PoolingStep)
    reasons_by_index = decode_failures(answer)
    if any(place >= len(plan.members) for place in reasons_by_index):
        raise InvalidShardAnswer(f"failures of texts {[*reasons_by_index]}, where there are {len(plan.members)}")
    succeeded = [newcomer for place, newcomer in enumerate(step.new_sequences) if place not in reasons_by_index]
    lengths = [len(newcomer.request.prompt) for newcomer in succeeded]
    rows = (_decode_vectors(answer, len(succeeded)) if step.kind is RequestKind.EMBED
            else _decode_token_labels(answer, lengths, model_info))
    outputs = dict(zip([newcomer.sequence_id for newcomer in succeeded], rows, strict=True))
    failed = {plan.members[place]: why for place, why in reasons_by_index.items()}
    return StepResult(plan.epoch, answer.forward_seconds, {}, failed, pooling_outputs=outputs)


def _decode_vectors(answer: pb.EmbedAnswer, num_texts: int) -> Iterator[PoolingOutput]:
    values, width = list(answer.values), answer.width
    if len(values) != width * num_texts or (num_texts and not width):
        raise InvalidShardAnswer(f"{len(values)} values for {num_texts} embeddings of {width}")
    if not all(map(isfinite, values)):
        raise InvalidShardAnswer("an embedding with a value that is no number")
    yield from split_by_counts(values, repeat(width, num_texts))


def _decode_token_labels(answer: pb.EmbedAnswer, prompt_lengths: list[int],
                         model_info: ModelInfo) -> Iterator[PoolingOutput]:
    counts, labels, scores = list(answer.num_labels), list(answer.labels), list(answer.scores)
    if counts != prompt_lengths or not sum(counts) == len(labels) == len(scores):
        raise InvalidShardAnswer(
            f"{counts} labels for texts of {prompt_lengths} tokens, {len(labels)} numbers and {len(scores)} scores")
    if labels and max(labels) >= len(model_info.labels):
        raise InvalidShardAnswer(f"label {max(labels)}, where there are {len(model_info.labels)}")
    if not all(map(isfinite, scores)):
        raise InvalidShardAnswer("a score that is no number")
    yield from map(TokenLabels, split_by_counts(labels, counts), split_by_counts(scores, counts))
