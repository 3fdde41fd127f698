from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from shard.state.token_counts import Seen


@given(some.lists(some.lists(some.integers(0, 5), max_size=4), max_size=6), some.integers(0, 4))
def test_it_knows_what_a_walk_over_all_tokens_finds(growth: list[list[int]], start: int) -> None:
    seen, tokens = Seen(start), [0, 1, 0, 2]
    for more in growth:
        tokens += more
        seen.follow(tokens)
    seen.follow(tokens)
    assert dict(zip(seen.ids, seen.counts, strict=True)) == Counter(tokens[start:])
