"""Decoding of embedding and classification answers, from columns to rows. Like all answers they are checked."""

from collections.abc import Iterator
from itertools import repeat
from math import isfinite

from router.request import Wish
from router.scheduler.plan import Answer, Embed, Labelling, ModelFacts, Plan, Told
from router.shards.encode import Defect, check_place, check_time, cut, failures
from shard.pb import shard_pb2 as pb


def decode(answer: pb.EmbedAnswer, plan: Plan, model: ModelFacts) -> Answer:
    """Decode rank 0's answer to a plan whose step is an Embed. Raises Defect."""
    check_place(answer, plan)
    check_time(answer)
    step = plan.messages[-1]
    assert isinstance(step, Embed)
    places = failures(answer)
    if any(place >= len(plan.members) for place in places):
        raise Defect(f"failures of texts {[*places]}, where there are {len(plan.members)}")
    left = [newcomer for place, newcomer in enumerate(step.newcomers) if place not in places]
    lengths = [len(newcomer.request.prompt) for newcomer in left]
    rows = _vectors(answer, len(left)) if step.wish is Wish.VECTOR else _labellings(answer, lengths, model)
    told = dict(zip([newcomer.sequence for newcomer in left], rows, strict=True))
    failed = {plan.members[place]: why for place, why in places.items()}
    return Answer(plan.epoch, answer.forward_seconds, {}, failed, told=told)


def _vectors(answer: pb.EmbedAnswer, num_texts: int) -> Iterator[Told]:
    values, width = list(answer.values), answer.width
    if len(values) != width * num_texts or (num_texts and not width):
        raise Defect(f"{len(values)} values for {num_texts} embeddings of {width}")
    if not all(map(isfinite, values)):
        raise Defect("an embedding with a value that is no number")
    yield from cut(values, repeat(width, num_texts))


def _labellings(answer: pb.EmbedAnswer, lengths: list[int], model: ModelFacts) -> Iterator[Told]:
    counts, labels, scores = list(answer.num_labels), list(answer.labels), list(answer.scores)
    if counts != lengths or not sum(counts) == len(labels) == len(scores):
        raise Defect(f"{counts} labels for texts of {lengths} tokens, {len(labels)} numbers and {len(scores)} scores")
    if labels and max(labels) >= len(model.labels):
        raise Defect(f"label {max(labels)}, where there are {len(model.labels)}")
    if not all(map(isfinite, scores)):
        raise Defect("a score that is no number")
    yield from map(Labelling, cut(labels, counts), cut(scores, counts))
