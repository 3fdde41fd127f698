"""Tests of router/shards/handshake.py."""

import asyncio
from typing import Any

import pytest

from router.config import RouterConfig
from router.request import LoadableResource
from router.scheduler.fault_isolation import ShardLossReason
from router.shards.failures import ShardsLost
from router.shards.handshake import HandshakeResult, combine_rank_infos, loaded_resources, perform_handshake
from shard.pb import shard_pb2 as pb


def make_info(rank: int = 0, **fields: Any) -> pb.InfoAnswer:
    warmup = None if fields.pop("cold", False) else pb.WarmupAnswer(block_size=16, num_blocks=8)
    return pb.InfoAnswer(**{"model": "loom", "rank": rank, "world_size": 2, "vocabulary_size": 512,
                            "max_positions": 64, "warmup": warmup} | fields)


class ScriptedRanks:
    """Double of the ranks that answers an InfoRequest with one list after the other and repeats the last."""

    def __init__(self, *infos: list[pb.InfoAnswer]) -> None:
        self.infos = [*infos]
        self.calls: list[Any] = []

    async def connect(self) -> None:
        self.calls.append("connect")

    async def call(self, request: Any, timeout: float) -> list[Any]:
        if isinstance(request, pb.InfoRequest):
            return self.infos.pop(0) if len(self.infos) > 1 else self.infos[0]
        self.calls.append(("warmup", request.max_total_tokens) if isinstance(request, pb.WarmupRequest)
                          else ("reset", request.epoch))
        return []


def run_handshake(ranks: ScriptedRanks, last_epoch: int = 0) -> HandshakeResult:
    shards: Any = ranks
    return asyncio.run(perform_handshake(shards, RouterConfig(), last_epoch))


def test_cold_shards_are_warmed_up_for_the_smallest_context() -> None:
    ranks = ScriptedRanks([make_info(0, cold=True, max_positions=64), make_info(1, cold=True, max_positions=48)],
                          [make_info(0), make_info(1)])
    assert run_handshake(ranks).model_info.num_blocks == 8
    assert ranks.calls == ["connect", ("warmup", 48), ("reset", 1)]


def test_warm_shards_are_not_warmed_up_again() -> None:
    ranks = ScriptedRanks([make_info(0), make_info(1)])
    run_handshake(ranks)
    assert ranks.calls == ["connect", ("reset", 1)]


@pytest.mark.parametrize(("known", "last", "next_one"), [(4, 0, 5), (4, 9, 10)])
def test_epoch_is_higher_than_any_known_one(known: int, last: int, next_one: int) -> None:
    ranks = ScriptedRanks([make_info(0, epoch=known - 1), make_info(1, epoch=known)])
    assert run_handshake(ranks, last).epoch == next_one
    assert ranks.calls[-1] == ("reset", next_one)


def test_resources_on_all_ranks_and_on_any_rank_are_distinguished() -> None:
    ranks = ScriptedRanks([make_info(0, loaded_grammars=[1, 2], loaded_adapters=[2]),
                           make_info(1, loaded_grammars=[2, 3])])
    meeting = run_handshake(ranks)
    assert meeting.loaded_on_all_ranks == {LoadableResource("grammar", 2)}
    assert meeting.loaded_on_any_rank == {LoadableResource("adapter", 2),
                                          *(LoadableResource("grammar", number) for number in (1, 2, 3))}


def test_grammars_are_supported_only_if_every_rank_supports_them() -> None:
    assert run_handshake(ScriptedRanks([make_info(0, grammars=True), make_info(1, grammars=True)])).model_info.grammars
    assert not run_handshake(ScriptedRanks([make_info(0, grammars=True), make_info(1)])).model_info.grammars


def test_ranks_with_different_models_are_rejected() -> None:
    with pytest.raises(ShardsLost, match="rank 1 serves another model than rank 0") as lost:
        run_handshake(ScriptedRanks([make_info(0), make_info(1, model="shuttle")]))
    assert lost.value.loss_reason is ShardLossReason.DEFECT


def test_smallest_cache_of_all_ranks_counts() -> None:
    def info(rank: int, num_blocks: int) -> pb.InfoAnswer:
        return pb.InfoAnswer(rank=rank, warmup=pb.WarmupAnswer(block_size=16, num_blocks=num_blocks))

    assert combine_rank_infos([info(0, 90), info(1, 80)]).num_blocks == 80


@pytest.mark.parametrize("kind", ["adapter", "grammar"])
def test_loaded_resources_are_identified_by_kind_and_number(kind: str) -> None:
    assert loaded_resources(pb.InfoAnswer(**{f"loaded_{kind}s": [7]})) == {LoadableResource(kind, 7)}
