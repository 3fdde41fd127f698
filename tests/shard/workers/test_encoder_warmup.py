"""Steps measured during the warm-up of an encoder."""

from collections.abc import Sequence
from math import inf

from shard.parallel.group import Alone
from shard.state.columns import Text
from shard.workers.encoder_warmup import TextRehearsal
from shard.workers.warmup import Sizes


def measured(sizes: Sizes, patience: float = inf) -> list[tuple[int, int, int]]:
    told = TextRehearsal(lambda _: None, sizes, Alone(), patience).measure()
    assert all(one.seconds >= 0 for one in told)
    return [(one.rows, one.chunk_tokens, one.context) for one in told]


def test_a_longer_and_longer_text_and_then_more_and_more_short_ones() -> None:
    assert measured(Sizes(9, 300, 300)) == [
        (1, 16, 16), (1, 64, 64), (1, 256, 256), (1, 300, 300), (2, 64, 64), (8, 256, 256), (9, 288, 288)]


def test_no_step_is_larger_than_the_limits() -> None:
    assert measured(Sizes(100, 70, 70)) == [(1, 16, 16), (1, 64, 64), (1, 70, 70), (2, 64, 64)]
    assert measured(Sizes(1, 3, 3)) == [(1, 3, 3), (1, 3, 3)]
    assert measured(Sizes(100, 160, 40)) == [(1, 16, 16), (1, 40, 40), (2, 64, 64), (5, 160, 160)]


def test_two_sizes_of_a_kind_are_tried_however_long_they_take() -> None:
    assert measured(Sizes(9, 300, 300), patience=-1.0) == [(1, 16, 16), (1, 64, 64), (2, 64, 64), (8, 256, 256)]


def test_whatever_is_brief_is_run_twice() -> None:
    runs: list[int] = []

    def run(texts: Sequence[Text]) -> None:
        runs.append(len(texts))

    TextRehearsal(run, Sizes(1, 16, 16), Alone(), inf).measure()
    assert len(runs) in {2, 3, 4}  # a run on a busy machine may be too slow to be repeated
