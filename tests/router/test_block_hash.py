"""Tests of router/block_hash.py."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from router.request import hash_blocks, hash_namespace

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=100)


@given(token_lists, st.sampled_from([16, 32]))
def test_block_hashes_are_the_same_when_computed_one_by_one(tokens: list[int], size: int) -> None:
    blocks = [tokens[start:start + size] for start in range(0, len(tokens) // size * size, size)]
    names = accumulate(blocks, lambda before, block: hash_blocks(before, block, size)[0], initial=hash_namespace("a"))
    assert hash_blocks(hash_namespace("a"), tokens, size) == tuple(names)[1:]


def test_block_hash_depends_on_all_tokens_before_it() -> None:
    hashes, other_hashes = (hash_blocks(hash_namespace("a"), (first, *range(1, 48)), 16) for first in (0, 1))
    assert len({*hashes, *other_hashes}) == 6


def test_namespaces_depend_on_where_their_parts_are_split() -> None:
    assert len({hash_namespace("ab", ""), hash_namespace("a", "b"), hash_namespace("", "ab"), hash_namespace("ab"),
                hash_namespace()}) == 5


def test_hashes_depend_on_the_salt() -> None:
    assert hash_namespace("a", salt=b"1") != hash_namespace("a", salt=b"2")
