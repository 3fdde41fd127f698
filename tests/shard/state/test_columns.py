"""Texts are read from columns; invalid ones are rejected by name."""

from typing import Any

import pytest

from shard.errors import Malformed
from shard.pb import shard_pb2 as pb
from shard.state.columns import Text, read_texts
from shard.state.sequence import Limits
from tests.shard.messages import embed

LIMITS = Limits(512, 8, 1, mixed_steps=True)


def test_texts_are_cut_by_the_column_of_counts() -> None:
    assert read_texts(embed([5, 6, 7], [8]), LIMITS) == [Text([5, 6, 7]), Text([8])]


def test_each_names_its_adapter() -> None:
    assert read_texts(embed([5], [6], adapters=[0, 9]), LIMITS) == [Text([5]), Text([6], 9)]


@pytest.mark.parametrize(("message", "complaint"), [
    (embed(), "names texts"),
    (embed([5], []), "text 1 has no tokens"),
    (embed([5] * 9), "text 0 has 9 tokens, the model holds 8"),
    (embed([5], [6, 512]), "text 1 has a token outside the vocabulary"),
    (embed([5], adapters=[1, 2]), "adapters has 2 entries for 1 rows"),
    (pb.EmbedRequest(wanted=pb.VECTORS, num_tokens=[2], tokens=[5]), "tokens has 1 entries, the counts say 2"),
    (embed([5], wanted=pb.WANTED_UNSPECIFIED), "wanted must be VECTORS or LABELS, got 0"),
    (embed([5], wanted=7), "wanted must be VECTORS or LABELS, got 7"),
], ids=str)
def test_what_makes_no_sense_is_malformed(message: Any, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        read_texts(message, LIMITS)
