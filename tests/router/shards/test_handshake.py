"""Tests of router/shards/handshake.py."""

import asyncio
from typing import Any

import pytest

from router.config import RouterConfig
from router.request import Resource
from router.scheduler.fault_isolation import Loss
from router.shards.failures import ShardsLost
from router.shards.handshake import Meeting, meet
from shard.pb import shard_pb2 as pb


def info(rank: int = 0, **more: Any) -> pb.InfoAnswer:
    warmup = None if more.pop("cold", False) else pb.WarmupAnswer(block_size=16, num_blocks=8)
    return pb.InfoAnswer(**{"model": "loom", "rank": rank, "world_size": 2, "vocabulary_size": 512,
                            "max_positions": 64, "warmup": warmup} | more)


class Ranks:
    """Double of the ranks that answers `info` with one list after the other and repeats the last."""

    def __init__(self, *infos: list[pb.InfoAnswer]) -> None:
        self.infos = [*infos]
        self.calls: list[Any] = []

    async def connect(self) -> None:
        self.calls.append("connect")

    async def info(self, timeout: float) -> list[pb.InfoAnswer]:
        return self.infos.pop(0) if len(self.infos) > 1 else self.infos[0]

    async def warmup(self, request: pb.WarmupRequest, timeout: float) -> None:
        self.calls.append(("warmup", request.max_total_tokens))

    async def reset(self, epoch: int, timeout: float) -> None:
        self.calls.append(("reset", epoch))


def met(ranks: Ranks, last_epoch: int = 0) -> Meeting:
    shards: Any = ranks
    return asyncio.run(meet(shards, RouterConfig(), last_epoch))


def test_shards_that_are_cold_are_warmed_up_for_what_the_smallest_holds() -> None:
    ranks = Ranks([info(0, cold=True, max_positions=64), info(1, cold=True, max_positions=48)], [info(0), info(1)])
    assert met(ranks).facts.num_blocks == 8
    assert ranks.calls == ["connect", ("warmup", 48), ("reset", 1)]


def test_shards_that_are_warm_are_not_warmed_up_again() -> None:
    ranks = Ranks([info(0), info(1)])
    met(ranks)
    assert ranks.calls == ["connect", ("reset", 1)]


@pytest.mark.parametrize(("known", "last", "next_one"), [(4, 0, 5), (4, 9, 10)])
def test_the_epoch_is_higher_than_all_that_anybody_knows(known: int, last: int, next_one: int) -> None:
    ranks = Ranks([info(0, epoch=known - 1), info(1, epoch=known)])
    assert met(ranks, last).epoch == next_one
    assert ranks.calls[-1] == ("reset", next_one)


def test_loaded_is_what_every_rank_holds() -> None:
    ranks = Ranks([info(0, loaded_grammars=[1, 2], loaded_adapters=[2]), info(1, loaded_grammars=[2, 3])])
    meeting = met(ranks)
    assert meeting.loaded == {Resource("grammar", 2)}
    assert meeting.leftovers == {Resource("adapter", 2), *(Resource("grammar", number) for number in (1, 2, 3))}


def test_grammars_are_taken_if_every_rank_takes_them() -> None:
    assert met(Ranks([info(0, grammars=True), info(1, grammars=True)])).facts.grammars
    assert not met(Ranks([info(0, grammars=True), info(1)])).facts.grammars


def test_ranks_that_disagree_are_a_defect() -> None:
    with pytest.raises(ShardsLost, match="another model") as lost:
        met(Ranks([info(0), info(1, model="shuttle")]))
    assert lost.value.loss is Loss.DEFECT
