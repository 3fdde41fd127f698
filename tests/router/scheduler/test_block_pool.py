"""Tests of router/scheduler/block_pool.py."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.scheduler.block_pool import CACHED_BLOCK, FREE_BLOCK, SHARED_BLOCK, BlockPool


def allocate_published(blocks, *hashes):
    """Take one block for each name and publish it under that name."""
    taken = blocks.allocate(len(hashes))
    for block, name in zip(taken, hashes, strict=True):
        blocks.cache_full_blocks([block], [name])
    return taken


def test_num_blocks_is_rounded_up():
    blocks = BlockPool(4, 16)
    assert [blocks.num_blocks_for(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


# -- holding


def test_freed_block_is_allocated_next():
    blocks = BlockPool(4, 16)
    first = blocks.allocate(2)
    blocks.free(first)
    assert set(blocks.allocate(2)) == set(first)


def test_allocating_more_blocks_than_are_free_fails():
    with pytest.raises(RuntimeError, match="5 blocks wanted, 4 free"):
        BlockPool(4, 16).allocate(5)


def test_shared_block_is_free_when_both_users_have_freed_it():
    blocks = BlockPool(4, 16)
    shared = allocate_published(blocks, b"a")
    blocks.touch(shared)
    blocks.free(shared)
    assert blocks.num_free == 3
    blocks.free(shared)
    assert blocks.num_free == 4


def test_freeing_a_block_twice_fails():
    blocks = BlockPool(4, 16)
    taken = blocks.allocate(1)
    blocks.free(taken)
    with pytest.raises(RuntimeError, match="given back twice"):
        blocks.free(taken)


# -- keeping


def test_published_block_stays_cached_when_freed():
    blocks = BlockPool(4, 16)
    first = allocate_published(blocks, b"a", b"b")
    blocks.free(first)
    assert blocks.find_cached_prefix([b"a", b"b"]) == first
    assert (blocks.num_evictable, blocks.num_free) == (2, 4)


def test_unpublished_block_is_not_cached_when_freed():
    blocks = BlockPool(4, 16)
    blocks.free(blocks.allocate(1))
    assert blocks.num_evictable == 0


def test_cached_blocks_are_evicted_only_if_no_others_are_free():
    blocks = BlockPool(4, 16)
    blocks.free(allocate_published(blocks, b"a", b"b"))
    blocks.allocate(2)
    assert blocks.num_evictable == 2
    blocks.allocate(1)
    assert blocks.num_evictable == 1


def test_later_blocks_of_a_prefix_are_evicted_first():
    blocks = BlockPool(3, 16)
    first = allocate_published(blocks, b"a", b"b", b"c")
    blocks.free(first)
    assert blocks.allocate(1) == first[2:]
    assert blocks.find_cached_prefix([b"a", b"b", b"c"]) == first[:2]


def test_least_recently_used_block_is_evicted_first():
    blocks = BlockPool(2, 16)
    first, second = allocate_published(blocks, b"a"), allocate_published(blocks, b"b")
    blocks.free(first)
    blocks.free(second)
    blocks.touch(first)
    blocks.free(first)
    assert blocks.allocate(1) == second


def test_acquired_block_is_never_evicted():
    blocks = BlockPool(2, 16)
    first = allocate_published(blocks, b"a", b"b")
    blocks.free(first)
    blocks.touch(first[:1])
    assert blocks.allocate(1) == first[1:]
    assert blocks.num_free == 0


def test_evicted_block_is_not_found_again():
    blocks = BlockPool(1, 16)
    blocks.free(allocate_published(blocks, b"a"))
    blocks.allocate(1)
    assert blocks.find_cached_prefix([b"a"]) == []


# -- names


def test_cached_prefix_ends_at_the_first_missing_block():
    blocks = BlockPool(4, 16)
    first = allocate_published(blocks, b"a", b"c")
    assert blocks.find_cached_prefix([b"a", b"b", b"c"]) == first[:1]


def test_first_of_two_blocks_with_one_hash_is_found_and_the_other_not_cached():
    blocks = BlockPool(4, 16)
    first, second = allocate_published(blocks, b"a"), allocate_published(blocks, b"a")
    assert blocks.find_cached_prefix([b"a"]) == first
    blocks.free(second)
    assert blocks.num_evictable == 0


def test_hash_is_reserved_until_it_is_published_or_released():
    blocks = BlockPool(4, 16)
    (first, second), names = blocks.allocate(2), (b"a", b"b")
    for block, name in zip((first, second), names, strict=True):
        blocks.reserve_hash(block, name)
    blocks.cache_full_blocks([first], [b"a"])
    blocks.cancel_hash_reservation(second, b"b")
    assert not any(map(blocks.is_hash_reserved, names))
    assert blocks.find_cached_prefix(names) == [first]


def test_only_the_block_that_reserved_a_hash_first_releases_it():
    blocks = BlockPool(4, 16)
    first, second = blocks.allocate(2)
    blocks.reserve_hash(first, b"a")
    blocks.reserve_hash(second, b"a")
    blocks.cancel_hash_reservation(second, b"a")
    assert blocks.is_hash_reserved(b"a")


def test_published_hash_cannot_be_reserved():
    blocks = BlockPool(4, 16)
    allocate_published(blocks, b"a")
    blocks.reserve_hash(*blocks.allocate(1), b"a")
    assert not blocks.is_hash_reserved(b"a")


# -- counting before blocks are freed or held


def test_count_freed_ignores_blocks_with_other_users():
    blocks = BlockPool(4, 16)
    first = [*allocate_published(blocks, b"a"), *blocks.allocate(1)]
    blocks.touch(first[:1])
    assert blocks.count_freed_by([first]) == 1
    assert blocks.count_freed_by([first, first[:1]]) == 2


def test_count_evictable_ignores_blocks_in_use():
    blocks = BlockPool(4, 16)
    held, kept = allocate_published(blocks, b"a"), allocate_published(blocks, b"b")
    blocks.free(kept)
    assert blocks.count_unreferenced(held + kept) == 1


class BlocksMachine(RuleBasedStateMachine):
    """Blocks against a model: a list of blocks for each holder, the published and the reserved block of each name, and
    the kept blocks in order of eviction."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockPool(12, 16)
        self.held: list[list[int]] = []
        self.published: dict[int, int] = {}  # names are numbers here
        self.reserved: dict[int, int] = {}
        self.kept: list[int] = []

    @rule(share=st.floats(0, 1))
    def take(self, share):
        free = set(range(12)) - {block for blocks in self.held for block in blocks}
        count = int(share * len(free))
        taken = self.blocks.allocate(count)
        assert len({*taken}) == count
        assert {*taken} <= free
        gone = self.kept[:max(0, count - len(free - {*self.kept}))]
        assert {*taken} & {*self.kept} == {*gone}
        self.kept = self.kept[len(gone):]
        self.published = {name: block for name, block in self.published.items() if block not in gone}
        self.held.append(taken)

    @rule(names=st.lists(st.integers(0, 9), max_size=4, unique=True))
    def find_and_hold(self, names):
        prefix = self.blocks.find_cached_prefix([bytes([name]) for name in names])
        assert prefix == [self.published[name] for name in names[:len(prefix)]]
        assert len(prefix) == len(names) or names[len(prefix)] not in self.published
        assert self.blocks.count_unreferenced(prefix) == len({*prefix} & {*self.kept})
        self.blocks.touch(prefix)
        self.kept = [block for block in self.kept if block not in prefix]
        self.held.append(prefix)

    @precondition(lambda self: any(self.held))
    @rule(choice=st.integers(0, 1000), name=st.integers(0, 9))
    def publish(self, choice, name):
        block = self.own(choice)
        if block not in self.published.values():
            self.blocks.cache_full_blocks([block], [bytes([name])])
            self.published.setdefault(name, block)
            self.unreserve(block, name)

    @precondition(lambda self: any(self.held))
    @rule(choice=st.integers(0, 1000), name=st.integers(0, 9))
    def reserve(self, choice, name):
        self.blocks.reserve_hash(self.own(choice), bytes([name]))
        if name not in self.published:
            self.reserved.setdefault(name, self.own(choice))

    @precondition(lambda self: any(self.held))
    @rule(choice=st.integers(0, 1000), name=st.integers(0, 9))
    def release(self, choice, name):
        self.blocks.cancel_hash_reservation(self.own(choice), bytes([name]))
        self.unreserve(self.own(choice), name)

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 1000), several=st.integers(1, 3))
    def give_back(self, choice, several):
        leaving = [self.held.pop(choice % len(self.held)) for _ in range(min(several, len(self.held)))]
        before = self.blocks.num_free
        expected = self.blocks.count_freed_by(leaving)
        for index, blocks in enumerate(leaving):
            self.blocks.free(blocks)
            held = {block for others in [*self.held, *leaving[index + 1:]] for block in others}  # lists may be equal
            self.kept += [b for b in reversed(blocks) if b in self.published.values() and b not in {*held, *self.kept}]
        assert self.blocks.num_free == before + expected

    def own(self, choice):
        held = [block for blocks in self.held for block in blocks]
        return held[choice % len(held)]

    def unreserve(self, block, name):
        if self.reserved.get(name) == block:
            del self.reserved[name]

    @invariant()
    def every_block_is_free_kept_or_held(self):
        held = Counter(block for blocks in self.held for block in blocks)
        assert self.blocks._ref_counts == [held[block] for block in range(12)]
        assert sorted([*held, *self.kept, *self.blocks._free_blocks]) == list(range(12))
        assert self.blocks.num_free == 12 - len(held)
        assert self.blocks.num_evictable == len(self.kept)

    @invariant()
    def every_block_has_a_holder_or_is_cached_or_free(self):
        holders = self.blocks.list_holders(dict(enumerate(self.held, 1)))
        tables = [[number for number, blocks in enumerate(self.held, 1) if block in blocks] for block in range(12)]
        assert holders == [table[0] if len(table) == 1 else SHARED_BLOCK if table
                           else CACHED_BLOCK if block in self.kept else FREE_BLOCK
                           for block, table in enumerate(tables)]

    @invariant()
    def published_blocks_match_the_model(self):
        for name in range(10):
            expected = [self.published[name]] if name in self.published else []
            assert self.blocks.find_cached_prefix([bytes([name])]) == expected
            assert self.blocks.is_hash_reserved(bytes([name])) == (name in self.reserved)


BlocksMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBlockPoolMachine = pytest.mark.slow(BlocksMachine.TestCase)
