"""Tests of router/scheduler/block_pool.py."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.scheduler.block_pool import Blocks


def published(blocks, *names):
    """Take one block for each name and publish it under that name."""
    taken = blocks.take(len(names))
    for block, name in zip(taken, names, strict=True):
        blocks.publish([block], [name])
    return taken


def test_places_are_rounded_up_to_whole_blocks():
    blocks = Blocks(4, 16)
    assert [blocks.places(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


# -- holding


def test_a_block_that_was_given_back_is_the_next_to_be_taken():
    blocks = Blocks(4, 16)
    first = blocks.take(2)
    blocks.give_back(first)
    assert set(blocks.take(2)) == set(first)


def test_more_blocks_than_are_free_are_refused():
    with pytest.raises(AssertionError, match="5 blocks wanted, 4 free"):
        Blocks(4, 16).take(5)


def test_a_block_that_two_hold_is_free_when_both_gave_it_back():
    blocks = Blocks(4, 16)
    shared = published(blocks, b"a")
    blocks.hold(shared)
    blocks.give_back(shared)
    assert blocks.num_free == 3
    blocks.give_back(shared)
    assert blocks.num_free == 4


def test_a_block_that_nobody_holds_is_not_given_back():
    blocks = Blocks(4, 16)
    taken = blocks.take(1)
    blocks.give_back(taken)
    with pytest.raises(AssertionError, match="given back twice"):
        blocks.give_back(taken)


# -- keeping


def test_a_published_block_is_kept_when_nobody_holds_it():
    blocks = Blocks(4, 16)
    first = published(blocks, b"a", b"b")
    blocks.give_back(first)
    assert blocks.find([b"a", b"b"]) == first
    assert (blocks.num_kept, blocks.num_free) == (2, 4)


def test_a_block_without_a_name_is_not_kept():
    blocks = Blocks(4, 16)
    blocks.give_back(blocks.take(1))
    assert blocks.num_kept == 0


def test_kept_blocks_are_taken_only_when_there_are_no_others():
    blocks = Blocks(4, 16)
    blocks.give_back(published(blocks, b"a", b"b"))
    blocks.take(2)
    assert blocks.num_kept == 2
    blocks.take(1)
    assert blocks.num_kept == 1


def test_what_stands_behind_goes_before_what_stands_before_it():
    blocks = Blocks(3, 16)
    first = published(blocks, b"a", b"b", b"c")
    blocks.give_back(first)
    assert blocks.take(1) == first[2:]
    assert blocks.find([b"a", b"b", b"c"]) == first[:2]


def test_the_least_recently_held_goes_first():
    blocks = Blocks(2, 16)
    first, second = published(blocks, b"a"), published(blocks, b"b")
    blocks.give_back(first)
    blocks.give_back(second)
    blocks.hold(first)
    blocks.give_back(first)
    assert blocks.take(1) == second


def test_what_is_held_is_never_taken():
    blocks = Blocks(2, 16)
    first = published(blocks, b"a", b"b")
    blocks.give_back(first)
    blocks.hold(first[:1])
    assert blocks.take(1) == first[1:]
    assert blocks.num_free == 0


def test_what_was_taken_is_not_found_any_more():
    blocks = Blocks(1, 16)
    blocks.give_back(published(blocks, b"a"))
    blocks.take(1)
    assert blocks.find([b"a"]) == []


# -- names


def test_blocks_are_found_up_to_the_first_that_is_missing():
    blocks = Blocks(4, 16)
    first = published(blocks, b"a", b"c")
    assert blocks.find([b"a", b"b", b"c"]) == first[:1]


def test_of_two_blocks_with_one_name_the_first_is_found_and_the_other_not_kept():
    blocks = Blocks(4, 16)
    first, second = published(blocks, b"a"), published(blocks, b"a")
    assert blocks.find([b"a"]) == first
    blocks.give_back(second)
    assert blocks.num_kept == 0


def test_a_name_is_reserved_until_it_is_published_or_released():
    blocks = Blocks(4, 16)
    (first, second), names = blocks.take(2), (b"a", b"b")
    for block, name in zip((first, second), names, strict=True):
        blocks.reserve(block, name)
    blocks.publish([first], [b"a"])
    blocks.release(second, b"b")
    assert not any(map(blocks.is_reserved, names))
    assert blocks.find(names) == [first]


def test_only_who_reserved_a_name_first_releases_it():
    blocks = Blocks(4, 16)
    first, second = blocks.take(2)
    blocks.reserve(first, b"a")
    blocks.reserve(second, b"a")
    blocks.release(second, b"a")
    assert blocks.is_reserved(b"a")


def test_a_name_that_is_published_is_not_reserved():
    blocks = Blocks(4, 16)
    published(blocks, b"a")
    blocks.reserve(*blocks.take(1), b"a")
    assert not blocks.is_reserved(b"a")


# -- counting before blocks are freed or held


def test_blocks_held_once_would_be_free_and_those_that_others_hold_would_not():
    blocks = Blocks(4, 16)
    first = [*published(blocks, b"a"), *blocks.take(1)]
    blocks.hold(first[:1])
    assert blocks.num_freed([first]) == 1
    assert blocks.num_freed([first, first[:1]]) == 2


def test_to_hold_what_others_hold_leaves_as_much_to_take():
    blocks = Blocks(4, 16)
    held, kept = published(blocks, b"a"), published(blocks, b"b")
    blocks.give_back(kept)
    assert blocks.num_kept_of(held + kept) == 1


class BlocksMachine(RuleBasedStateMachine):
    """Blocks against a model: a list of blocks for each holder, the published and the reserved block of each name, and
    the kept blocks in order of eviction."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(12, 16)
        self.held: list[list[int]] = []
        self.published: dict[int, int] = {}  # names are numbers here
        self.reserved: dict[int, int] = {}
        self.kept: list[int] = []

    @rule(share=st.floats(0, 1))
    def take(self, share):
        free = set(range(12)) - {block for blocks in self.held for block in blocks}
        count = int(share * len(free))
        taken = self.blocks.take(count)
        assert len({*taken}) == count
        assert {*taken} <= free
        gone = self.kept[:max(0, count - len(free - {*self.kept}))]
        assert {*taken} & {*self.kept} == {*gone}
        self.kept = self.kept[len(gone):]
        self.published = {name: block for name, block in self.published.items() if block not in gone}
        self.held.append(taken)

    @rule(names=st.lists(st.integers(0, 9), max_size=4, unique=True))
    def find_and_hold(self, names):
        found = self.blocks.find([bytes([name]) for name in names])
        assert found == [self.published[name] for name in names[:len(found)]]
        assert len(found) == len(names) or names[len(found)] not in self.published
        assert self.blocks.num_kept_of(found) == len({*found} & {*self.kept})
        self.blocks.hold(found)
        self.kept = [block for block in self.kept if block not in found]
        self.held.append(found)

    @precondition(lambda self: any(self.held))
    @rule(which=st.integers(0, 1000), name=st.integers(0, 9))
    def publish(self, which, name):
        block = self.own(which)
        if block not in self.published.values():
            self.blocks.publish([block], [bytes([name])])
            self.published.setdefault(name, block)
            self.unreserve(block, name)

    @precondition(lambda self: any(self.held))
    @rule(which=st.integers(0, 1000), name=st.integers(0, 9))
    def reserve(self, which, name):
        self.blocks.reserve(self.own(which), bytes([name]))
        if name not in self.published:
            self.reserved.setdefault(name, self.own(which))

    @precondition(lambda self: any(self.held))
    @rule(which=st.integers(0, 1000), name=st.integers(0, 9))
    def release(self, which, name):
        self.blocks.release(self.own(which), bytes([name]))
        self.unreserve(self.own(which), name)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1000), several=st.integers(1, 3))
    def give_back(self, which, several):
        leaving = [self.held.pop(which % len(self.held)) for _ in range(min(several, len(self.held)))]
        before = self.blocks.num_free
        expected = self.blocks.num_freed(leaving)
        for blocks in leaving:
            self.blocks.give_back(blocks)
            held = {block for others in [*self.held, *leaving[leaving.index(blocks) + 1:]] for block in others}
            self.kept += [b for b in reversed(blocks) if b in self.published.values() and b not in {*held, *self.kept}]
        assert self.blocks.num_free == before + expected

    def own(self, which):
        held = [block for blocks in self.held for block in blocks]
        return held[which % len(held)]

    def unreserve(self, block, name):
        if self.reserved.get(name) == block:
            del self.reserved[name]

    @invariant()
    def every_block_is_free_or_kept_or_held_by_so_many(self):
        held = Counter(block for blocks in self.held for block in blocks)
        assert self.blocks._holders == [held[block] for block in range(12)]
        assert sorted([*held, *self.kept, *self.blocks._free]) == list(range(12))
        assert self.blocks.num_free == 12 - len(held)
        assert self.blocks.num_kept == len(self.kept)

    @invariant()
    def names_are_those_of_the_model(self):
        for name in range(10):
            found = [self.published[name]] if name in self.published else []
            assert self.blocks.find([bytes([name])]) == found
            assert self.blocks.is_reserved(bytes([name])) == (name in self.reserved)


BlocksMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBlocksMachine = pytest.mark.slow(BlocksMachine.TestCase)
