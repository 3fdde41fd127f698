from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from shard.state.token_occurrences import TokenOccurrences


@given(some.lists(some.lists(some.integers(0, 5), max_size=4), max_size=6), some.integers(0, 4))
def test_token_counts_equal_a_count_of_all_tokens(growth: list[list[int]], start: int) -> None:
    token_counts, tokens = TokenOccurrences(start), [0, 1, 0, 2]
    for more in growth:
        tokens += more
        token_counts.update(tokens)
    token_counts.update(tokens)
    assert dict(zip(token_counts.token_ids, token_counts.counts, strict=True)) == Counter(tokens[start:])
