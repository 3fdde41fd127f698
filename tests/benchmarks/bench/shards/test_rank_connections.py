import asyncio
from pathlib import Path

import pytest
from support.shards.listening_shards import run_simulated_shards

from benchmarks.bench.shards.rank_connections import (
    MessageRejected,
    RankConnections,
    ShardFailed,
    check_rank_order,
    connect_to_ranks,
    derive_rank_addresses,
    find_rank_addresses,
    start_shards,
    to_grpc_address,
)
from shard.config import ShardConfig, SimulatedConfig
from shard.pb import shard_pb2 as pb

WARMUP_REQUEST = pb.WarmupRequest(block_size=16, max_prefill_tokens=16, max_batch_size=1, max_total_tokens=16)


async def fetch_ranks(ranks: RankConnections) -> list[tuple[int, int]]:
    return [(info.rank, info.world_size) for info in await ranks.fetch_infos()]


def test_all_ranks_get_the_same_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with run_simulated_shards(tmp_path, 2) as addresses, connect_to_ranks(addresses) as ranks:
            await ranks.send(WARMUP_REQUEST)
            assert [info.warmup.block_size for info in await ranks.fetch_infos()] == [16, 16]

    asyncio.run(scenario())


def test_rejection_is_reported_in_the_words_of_the_shard(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with run_simulated_shards(tmp_path, 2) as addresses, connect_to_ranks(addresses) as ranks:
            await ranks.send(pb.ResetRequest(epoch=1))
            with pytest.raises(MessageRejected, match="there is no cache yet: Warmup comes first"):
                await ranks.send(pb.DecodeRequest(epoch=1, order=1, batch=1))

    asyncio.run(scenario())


def test_step_failure_precedes_a_rejection_of_another_rank(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "other").mkdir()
        async with (run_simulated_shards(tmp_path) as sound,
                    run_simulated_shards(tmp_path / "other", faults="step_error@decode:1") as bad,
                    connect_to_ranks([*sound, *bad]) as ranks):
            await ranks.send(pb.ResetRequest(epoch=1))
            with pytest.raises(ShardFailed, match=rf"the shard at {bad[0]} failed: internal: "):
                await ranks.send(pb.DecodeRequest(epoch=1, order=1, batch=1))

    asyncio.run(scenario())


def test_missing_shard_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connect_to_ranks([f"unix:{tmp_path}/none"]) as ranks:
            with pytest.raises(ShardFailed, match=f"no shard answers at unix:{tmp_path}/none"):
                await ranks.fetch_infos()

    asyncio.run(scenario())


def test_other_ranks_are_found_beside_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with run_simulated_shards(tmp_path, 2) as addresses, connect_to_ranks(
                await find_rank_addresses(addresses[0])) as ranks:
            assert await fetch_ranks(ranks) == [(0, 2), (1, 2)]

    asyncio.run(scenario())


def test_ranks_must_be_named_in_order() -> None:
    infos = [pb.InfoAnswer(rank=rank, world_size=2) for rank in (0, 1)]
    check_rank_order(["a", "b"], infos)
    with pytest.raises(ValueError, match="the shard at b is rank 1 of 2, and was named as rank 0 of 2; name all of"):
        check_rank_order(["b", "a"], infos[::-1])
    with pytest.raises(ValueError, match="the shard at a is rank 0 of 2, and was named as rank 0 of 1"):
        check_rank_order(["a"], infos[:1])


@pytest.mark.parametrize(("first", "second"), [
    ("unix:/run/3/shard-0.sock", "unix:/run/3/shard-1.sock"),
    ("unix:/tmp/text-generation-server-0", "unix:/tmp/text-generation-server-1"),
    ("unix:/run/0", "unix:/run/1"),
])
def test_last_number_of_a_socket_name_is_the_rank(first: str, second: str) -> None:
    assert derive_rank_addresses(first, 2) == (first, second)


@pytest.mark.parametrize("first", ["unix:/run/0/shard.sock", "unix:/run/shard-1.sock", "unix:/run/shard-10.sock"])
def test_name_without_rank_0_does_not_give_the_other_ranks(first: str) -> None:
    assert derive_rank_addresses(first, 1) == (first,)
    with pytest.raises(ValueError, match=f"{first} has no rank 0 in its name.* the other 2 ranks .* --socket"):
        derive_rank_addresses(first, 3)


def test_path_is_a_unix_socket_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert to_grpc_address("unix:/a.sock") == to_grpc_address("/a.sock") == "unix:/a.sock"
    assert to_grpc_address("a.sock") == f"unix:{tmp_path}/a.sock"
    assert to_grpc_address("localhost:4711") == "localhost:4711"


@pytest.mark.slow
def test_one_shard_is_started_per_rank() -> None:
    async def scenario(addresses: tuple[str, ...]) -> None:
        async with connect_to_ranks(addresses) as ranks:
            assert await fetch_ranks(ranks) == [(0, 2), (1, 2)]

    with start_shards(ShardConfig(simulated=SimulatedConfig()), 2) as addresses:
        asyncio.run(scenario(addresses))
