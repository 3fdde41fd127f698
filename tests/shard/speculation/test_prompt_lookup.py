"""Prompt lookup, compared with a search through all tokens."""

from hypothesis import given
from hypothesis import strategies as st

from shard.speculation.prompt_lookup import NUM_MATCHED_TOKENS, PromptLookup


def search(tokens: list[int], max_tokens: int) -> list[int]:
    """Return what followed the last occurrence of the last three tokens, by comparing them at every place."""
    last = tokens[-NUM_MATCHED_TOKENS:]
    for end in range(len(tokens) - 1, NUM_MATCHED_TOKENS - 1, -1):
        if tokens[end - NUM_MATCHED_TOKENS:end] == last:
            proposal = tokens[end:]
            while len(proposal) < max_tokens:
                proposal += tokens[end:]
            return proposal[:max_tokens]
    return []


@given(tokens=st.lists(st.integers(0, 3), max_size=60), max_tokens=st.integers(1, 9), data=st.data())
def test_proposal_is_what_followed_the_last_occurrence(tokens: list[int], max_tokens: int, data: st.DataObject) -> None:
    lookup, length = PromptLookup(), 0
    while length < len(tokens):
        length += data.draw(st.integers(1, len(tokens) - length))
        assert lookup.propose(tokens[:length], max_tokens) == search(tokens[:length], max_tokens)


def test_copied_text_is_proposed() -> None:
    assert PromptLookup().propose([5, 6, 7, 8, 9, 1, 5, 6, 7], 3) == [8, 9, 1]


def test_repetition_goes_on() -> None:
    assert PromptLookup().propose([5, 1, 2, 1, 2, 1], 5) == [2, 1, 2, 1, 2]


def test_nothing_is_proposed_without_an_earlier_occurrence() -> None:
    assert PromptLookup().propose([1, 2, 3, 4, 5], 3) == []
    assert PromptLookup().propose([1, 2, 3], 3) == []
    assert PromptLookup().propose([], 3) == []


def test_tokens_with_large_ids_are_told_apart() -> None:
    last = (1 << 21) - 1
    assert PromptLookup().propose([0, last, 0, 7, last, 0, 0, 8, 0, last, 0], 1) == [7]
