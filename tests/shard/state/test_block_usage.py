import pytest

from shard.errors import MalformedMessage, RejectedMessage
from shard.state.block_usage import BlockClaimChecker, BlockUsage


@pytest.fixture
def block_usage() -> BlockUsage:
    """Block 0 is full and held twice, block 1 is being written, the others are free."""
    block_usage = BlockUsage(16, 4)
    block_usage.acquire([0, 1])
    block_usage.mark_full([0])
    block_usage.share([0])
    return block_usage


def test_only_free_blocks_can_be_acquired(block_usage: BlockUsage) -> None:
    BlockClaimChecker(block_usage).acquire([2, 3])
    with pytest.raises(RejectedMessage, match="block 0 is held"):
        BlockClaimChecker(block_usage).acquire([0])


def test_only_full_blocks_can_be_shared(block_usage: BlockUsage) -> None:
    BlockClaimChecker(block_usage).share([0])
    with pytest.raises(RejectedMessage, match=r"block 1 .* never filled"):
        BlockClaimChecker(block_usage).share([1])


def test_a_block_is_free_when_all_holders_released_it(block_usage: BlockUsage) -> None:
    claims = BlockClaimChecker(block_usage)
    claims.release([0])
    with pytest.raises(RejectedMessage):
        claims.acquire([0])
    claims.release([0])
    claims.acquire([0])


def test_message_may_share_a_block_several_times_but_acquire_it_once(block_usage: BlockUsage) -> None:
    claims = BlockClaimChecker(block_usage)
    claims.share([0])
    claims.share([0])
    claims.acquire([2])
    for claim in (lambda: claims.acquire([2]), lambda: claims.acquire([0]), lambda: claims.share([2])):
        with pytest.raises(MalformedMessage):
            claim()


def test_claims_do_not_change_the_block_usage(block_usage: BlockUsage) -> None:
    claims = BlockClaimChecker(block_usage)
    claims.release([0, 1])
    claims.acquire([1, 2])
    assert block_usage.num_holders == [2, 1, 0, 0]
    assert list(block_usage.is_full) == [True, False, False, False]
