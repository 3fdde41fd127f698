import asyncio
from pathlib import Path

import pytest
from support.listening_shards import bare_shards

from benchmarks.bench.shards.ranks import (
    Ranks,
    Refused,
    ShardFailed,
    address_of,
    beside,
    check_order,
    connected,
    named_by_rank,
    started,
)
from shard.config import ShardConfig, SimulatedConfig
from shard.pb import shard_pb2 as pb

WARMUP = pb.WarmupRequest(block_size=16, max_prefill_tokens=16, max_batch_size=1, max_total_tokens=16)


async def told(ranks: Ranks) -> list[tuple[int, int]]:
    return [(info.rank, info.world_size) for info in await ranks.infos()]


def test_all_ranks_hear_the_same(tmp_path: Path) -> None:
    async def scene() -> None:
        async with bare_shards(tmp_path, 2) as addresses, connected(addresses) as ranks:
            await ranks.send(WARMUP)
            assert [info.warmup.block_size for info in await ranks.infos()] == [16, 16]

    asyncio.run(scene())


def test_what_the_shards_refuse_is_told_in_their_words(tmp_path: Path) -> None:
    async def scene() -> None:
        async with bare_shards(tmp_path, 2) as addresses, connected(addresses) as ranks:
            await ranks.send(pb.ResetRequest(epoch=1))
            with pytest.raises(Refused, match="there is no cache yet: Warmup comes first"):
                await ranks.send(pb.DecodeRequest(epoch=1, order=1, batch=1))

    asyncio.run(scene())


def test_a_step_that_fails_at_one_rank_says_more_than_a_refusal_of_another(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "other").mkdir()
        async with (bare_shards(tmp_path) as sound,
                    bare_shards(tmp_path / "other", faults="step_error@decode:1") as bad,
                    connected([*sound, *bad]) as ranks):
            await ranks.send(pb.ResetRequest(epoch=1))
            with pytest.raises(ShardFailed, match=rf"the shard at {bad[0]} failed: internal: "):
                await ranks.send(pb.DecodeRequest(epoch=1, order=1, batch=1))

    asyncio.run(scene())


def test_where_nobody_listens_no_shard_answers(tmp_path: Path) -> None:
    async def scene() -> None:
        async with connected([f"unix:{tmp_path}/none"]) as ranks:
            with pytest.raises(ShardFailed, match=f"no shard answers at unix:{tmp_path}/none"):
                await ranks.infos()

    asyncio.run(scene())


def test_the_other_ranks_are_found_beside_the_first(tmp_path: Path) -> None:
    async def scene() -> None:
        async with bare_shards(tmp_path, 2) as addresses, connected(await beside(addresses[0])) as ranks:
            assert await told(ranks) == [(0, 2), (1, 2)]

    asyncio.run(scene())


def test_ranks_are_named_in_their_order() -> None:
    infos = [pb.InfoAnswer(rank=rank, world_size=2) for rank in (0, 1)]
    check_order(["a", "b"], infos)
    with pytest.raises(ValueError, match="the shard at b is rank 1 of 2, and was named as rank 0 of 2; name all of"):
        check_order(["b", "a"], infos[::-1])
    with pytest.raises(ValueError, match="the shard at a is rank 0 of 2, and was named as rank 0 of 1"):
        check_order(["a"], infos[:1])


@pytest.mark.parametrize(("first", "second"), [
    ("unix:/run/3/shard-0.sock", "unix:/run/3/shard-1.sock"),
    ("unix:/tmp/text-generation-server-0", "unix:/tmp/text-generation-server-1"),
    ("unix:/run/0", "unix:/run/1"),
])
def test_the_last_number_in_the_name_of_a_socket_is_the_rank(first: str, second: str) -> None:
    assert named_by_rank(first, 2) == (first, second)


@pytest.mark.parametrize("first", ["unix:/run/0/shard.sock", "unix:/run/shard-1.sock", "unix:/run/shard-10.sock"])
def test_a_name_without_rank_0_tells_nothing_of_the_others(first: str) -> None:
    assert named_by_rank(first, 1) == (first,)
    with pytest.raises(ValueError, match=f"{first} has no rank 0 in its name.* the other 2 ranks .* --socket"):
        named_by_rank(first, 3)


def test_a_path_is_one_of_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert address_of("unix:/a.sock") == address_of("/a.sock") == "unix:/a.sock"
    assert address_of("a.sock") == f"unix:{tmp_path}/a.sock"
    assert address_of("localhost:4711") == "localhost:4711"


@pytest.mark.slow
def test_as_many_shards_are_started_as_there_are_ranks() -> None:
    async def scene(addresses: tuple[str, ...]) -> None:
        async with connected(addresses) as ranks:
            assert await told(ranks) == [(0, 2), (1, 2)]

    with started(ShardConfig(simulated=SimulatedConfig()), 2) as addresses:
        asyncio.run(scene(addresses))
