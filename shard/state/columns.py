"""Texts to embed or to label, each run as a whole, read from the columns of a message.

Texts are checked here as far as that is possible without the shard's state.
"""

from dataclasses import dataclass

from shard.errors import Malformed
from shard.pb import shard_pb2 as pb
from shard.state.sequence import Limits, column, ragged


@dataclass(frozen=True, slots=True)
class Text:
    tokens: list[int]
    adapter: int = 0


def read_texts(message: pb.EmbedRequest, limits: Limits) -> list[Text]:
    if message.wanted not in pb.Wanted.values() or not message.wanted:
        raise Malformed(f"wanted must be VECTORS or LABELS, got {message.wanted}")
    tokens = ragged(message.tokens, list(message.num_tokens), "tokens")
    if not tokens:
        raise Malformed("an Embed names texts")
    adapters = column(message.adapters, len(tokens), 0, "adapters")
    texts = list(map(Text, tokens, adapters))
    for place, text in enumerate(texts):
        _check(place, text, limits)
    return texts


def _check(place: int, text: Text, limits: Limits) -> None:
    length = len(text.tokens)
    wrongs = {
        "has no tokens": not length,
        f"has {length} tokens, the model holds {limits.max_positions}": length > limits.max_positions,
        "has a token outside the vocabulary": max(text.tokens, default=0) >= limits.vocabulary_size,
    }
    for wrong, found in wrongs.items():
        if found:
            raise Malformed(f"text {place} {wrong}")
