"""Texts to embed or to label, each run as a whole, read from the columns of a message.

Texts are checked here as far as that is possible without the shard's state.
"""

from dataclasses import dataclass

from shard.errors import MalformedMessage
from shard.pb import shard_pb2 as pb
from shard.state.sequence import ModelLimits, read_column, split_by_counts


@dataclass(frozen=True, slots=True)
class PoolingText:
    """Token ids of one text to embed or to label, and its adapter."""

    tokens: list[int]
    adapter_id: int = 0


def read_texts(message: pb.EmbedRequest, limits: ModelLimits) -> list[PoolingText]:
    if message.wanted not in pb.Wanted.values() or not message.wanted:
        raise MalformedMessage(f"wanted must be VECTORS or LABELS, got {message.wanted}")
    tokens = split_by_counts(message.tokens, list(message.num_tokens), "tokens")
    if not tokens:
        raise MalformedMessage("an Embed names texts")
    adapters = read_column(message.adapters, len(tokens), 0, "adapters")
    texts = list(map(PoolingText, tokens, adapters))
    for place, text in enumerate(texts):
        _check_text(place, text, limits)
    return texts


def _check_text(index: int, text: PoolingText, limits: ModelLimits) -> None:
    length = len(text.tokens)
    problems = {
        "has no tokens": not length,
        f"has {length} tokens, the model holds {limits.max_positions}": length > limits.max_positions,
        "has a token outside the vocabulary": max(text.tokens, default=0) >= limits.vocabulary_size,
    }
    for problem, is_present in problems.items():
        if is_present:
            raise MalformedMessage(f"text {index} {problem}")
