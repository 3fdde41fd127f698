import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.blocks import Blocks


def test_places_are_rounded_up_to_whole_blocks():
    blocks = Blocks(4, 16)
    assert [blocks.places(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_a_block_that_was_given_back_is_the_next_to_be_taken():
    blocks = Blocks(4, 16)
    first = blocks.take(2)
    blocks.give_back(first)
    assert set(blocks.take(2)) == set(first)


def test_more_blocks_than_are_free_are_refused():
    with pytest.raises(AssertionError, match="5 blocks wanted, 4 free"):
        Blocks(4, 16).take(5)


class BlocksMachine(RuleBasedStateMachine):
    """The model is a list of held lists: what is held and what is free are all blocks, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(20, 16)
        self.held: list[list[int]] = []

    @rule(share=st.floats(0, 1))
    def take(self, share):
        self.held.append(self.blocks.take(int(share * self.blocks.num_free)))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1000))
    def give_back(self, which):
        self.blocks.give_back(self.held.pop(which % len(self.held)))

    @invariant()
    def every_block_is_free_or_held_once(self):
        held = [block for blocks in self.held for block in blocks]
        assert len(held) + self.blocks.num_free == self.blocks.count
        assert sorted(held + self.blocks._free) == list(range(self.blocks.count))


TestBlocksMachine = BlocksMachine.TestCase
TestBlocksMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
