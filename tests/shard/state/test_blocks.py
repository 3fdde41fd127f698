import pytest

from shard.errors import Malformed, Refused
from shard.state.blocks import Blocks, Claims


@pytest.fixture
def blocks() -> Blocks:
    """Block 0 is full and held twice, block 1 is being written, the others are free."""
    blocks = Blocks(16, 4)
    blocks.take([0, 1])
    blocks.fill([0])
    blocks.share([0])
    return blocks


def test_only_free_blocks_are_taken(blocks: Blocks) -> None:
    Claims(blocks).take([2, 3])
    with pytest.raises(Refused, match="block 0 is held"):
        Claims(blocks).take([0])


def test_only_full_blocks_are_shared(blocks: Blocks) -> None:
    Claims(blocks).share([0])
    with pytest.raises(Refused, match=r"block 1 .* never filled"):
        Claims(blocks).share([1])


def test_a_block_is_free_when_all_holders_released_it(blocks: Blocks) -> None:
    claims = Claims(blocks)
    claims.release([0])
    with pytest.raises(Refused):
        claims.take([0])
    claims.release([0])
    claims.take([0])


def test_a_message_may_share_a_block_several_times_but_take_it_once(blocks: Blocks) -> None:
    claims = Claims(blocks)
    claims.share([0])
    claims.share([0])
    claims.take([2])
    for claim in (lambda: claims.take([2]), lambda: claims.take([0]), lambda: claims.share([2])):
        with pytest.raises(Malformed):
            claim()


def test_claims_change_nothing(blocks: Blocks) -> None:
    claims = Claims(blocks)
    claims.release([0, 1])
    claims.take([1, 2])
    assert blocks.num_holders == [2, 1, 0, 0]
    assert list(blocks.full) == [True, False, False, False]
