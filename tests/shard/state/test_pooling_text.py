"""Texts are read from columns; invalid ones are rejected by name."""

from typing import Any

import pytest
from support.shards.protocol_messages import make_embed

from shard.errors import MalformedMessage
from shard.pb import shard_pb2 as pb
from shard.state.pooling_text import PoolingText, read_texts
from shard.state.sequence import ModelLimits

MESSAGE_LIMITS = ModelLimits(512, 8, 1, mixed_steps=True)


def test_texts_are_split_by_the_counts_column() -> None:
    assert read_texts(make_embed([5, 6, 7], [8]), MESSAGE_LIMITS) == [PoolingText([5, 6, 7]), PoolingText([8])]


def test_each_text_has_its_adapter() -> None:
    assert read_texts(make_embed([5], [6], adapters=[0, 9]), MESSAGE_LIMITS) == [PoolingText([5]), PoolingText([6], 9)]


@pytest.mark.parametrize(("message", "complaint"), [
    (make_embed(), "names texts"),
    (make_embed([5], []), "text 1 has no tokens"),
    (make_embed([5] * 9), "text 0 has 9 tokens, the model holds 8"),
    (make_embed([5], [6, 512]), "text 1 has a token outside the vocabulary"),
    (make_embed([5], adapters=[1, 2]), "adapters has 2 entries for 1 rows"),
    (pb.EmbedRequest(wanted=pb.VECTORS, num_tokens=[2], tokens=[5]), "tokens has 1 entries, the counts say 2"),
    (make_embed([5], wanted=pb.WANTED_UNSPECIFIED), "wanted must be VECTORS or LABELS, got 0"),
    (make_embed([5], wanted=7), "wanted must be VECTORS or LABELS, got 7"),
], ids=str)
def test_invalid_texts_are_malformed(message: Any, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        read_texts(message, MESSAGE_LIMITS)
