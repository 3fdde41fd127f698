"""Tests of router/block_hash.py."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from router.block_hash import block_hashes, namespace

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=100)


@given(tokens, st.sampled_from([16, 32]))
def test_blocks_have_the_same_names_one_by_one(tokens: list[int], size: int) -> None:
    blocks = [tokens[start:start + size] for start in range(0, len(tokens) // size * size, size)]
    names = accumulate(blocks, lambda before, block: block_hashes(before, block, size)[0], initial=namespace("a"))
    assert block_hashes(namespace("a"), tokens, size) == tuple(names)[1:]


def test_a_block_is_named_by_everything_before_it() -> None:
    one, other = (block_hashes(namespace("a"), (first, *range(1, 48)), 16) for first in (0, 1))
    assert len({*one, *other}) == 6


def test_namespaces_differ_wherever_the_parts_are_cut() -> None:
    assert len({namespace("ab", ""), namespace("a", "b"), namespace("", "ab"), namespace("ab"), namespace()}) == 5


def test_names_tell_nothing_to_who_does_not_know_the_salt() -> None:
    assert namespace("a", salt=b"1") != namespace("a", salt=b"2")
