"""Addresses of shards on other hosts, and a group with such a shard that comes, goes and moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.host_credentials import make_self_signed

from router.scheduler.fault_isolation import ShardLossReason
from router.shards.failures import ShardsLost
from router.shards.rank_address import is_remote, resolve_rank_address, wait_for_address
from router.shards.shard_group import ShardGroup
from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.rpc.server import HealthService, serve_grpc
from shard.rpc.service import ShardService
from shard.simulator.worker import SimulatedWorker
from shard.tls_credentials import ShardTlsCredentials, load_credentials


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> ShardTlsCredentials:
    return load_credentials(make_self_signed(tmp_path_factory.mktemp("credentials")))


@asynccontextmanager
async def run_shard(socket: str, rank: int, credentials: ShardTlsCredentials | None = None) -> AsyncIterator[str]:
    """Run a shard of two; yield its address."""
    config = ShardConfig(socket, rank, 2)
    service = ShardService(SimulatedWorker(config, sleep=lambda _: None), config.gap_timeout)
    async with serve_grpc(socket, service, HealthService(60.0, lambda: None), credentials) as port:
        yield f"127.0.0.1:{port}"


async def list_ranks(group: ShardGroup) -> list[int]:
    return [info.rank for info in await group.call(pb.InfoRequest(), 5.0)]


def test_address_of_a_local_shard_is_itself() -> None:
    assert not is_remote("unix:/shard")
    assert resolve_rank_address("unix:/shard") == "unix:/shard"


def test_address_of_a_remote_shard_is_in_its_file_while_there_is_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        address = f"file:{tmp_path}/address-1"
        assert (is_remote(address), resolve_rank_address(address)) == (True, "")
        waiting = asyncio.create_task(wait_for_address(address))
        await asyncio.sleep(0)
        assert not waiting.done()
        (tmp_path / "address-1").write_text("10.0.0.2:7")
        assert await waiting == "10.0.0.2:7"
    asyncio.run(scenario())


def test_group_reaches_a_shard_on_another_host_wherever_it_listens(
        tmp_path: Path, credentials: ShardTlsCredentials) -> None:
    async def scenario() -> None:
        file, local = tmp_path / "address-1", f"unix:{tmp_path}/shard-0"
        group = ShardGroup([local, f"file:{file}"], credentials=credentials)
        async with run_shard(local, 0):
            for _ in range(2):  # the second time at another port
                async with run_shard("127.0.0.1:0", 1, credentials) as address:
                    file.write_text(address)
                    await group.connect()
                    assert await list_ranks(group) == [0, 1]
                    assert not group.is_disconnected
            await group.close()
    asyncio.run(scenario())


def test_group_connects_to_a_new_shard_with_renewed_credentials(tmp_path: Path) -> None:
    credentials = load_credentials(make_self_signed(tmp_path / "credentials"))
    renewed = load_credentials(make_self_signed(tmp_path / "credentials", secret="another-secret-of-the-hosts"))

    async def scenario() -> None:
        file, local = tmp_path / "address-1", f"unix:{tmp_path}/shard-0"
        group = ShardGroup([local, f"file:{file}"], credentials=credentials)
        async with run_shard(local, 0), run_shard("127.0.0.1:0", 1, renewed) as address:
            file.write_text(address)
            await asyncio.wait_for(group.connect(), 10)
            assert await list_ranks(group) == [0, 1]
            await group.close()
    asyncio.run(scenario())


def test_address_that_is_withdrawn_before_the_shard_was_reached_is_a_loss(
        tmp_path: Path, credentials: ShardTlsCredentials) -> None:
    async def scenario() -> None:
        file, local = tmp_path / "address-1", f"unix:{tmp_path}/shard-0"
        file.write_text("127.0.0.1:9")  # where nothing listens
        group = ShardGroup([local, f"file:{file}"], credentials=credentials)
        async with run_shard(local, 0):
            connecting = asyncio.create_task(group.connect())
            while group._ranks == [] or not group._ranks[1]._target:  # noqa: ASYNC110 - until it has read the file
                await asyncio.sleep(0)
            file.unlink()
            with pytest.raises(ShardsLost, match="is gone before it was connected") as lost:
                await connecting
            assert lost.value.loss_reason is ShardLossReason.DEATH
            await group.close()
    asyncio.run(scenario())


def test_local_shard_that_goes_while_a_remote_one_is_awaited_is_a_loss(
        tmp_path: Path, credentials: ShardTlsCredentials) -> None:
    """Its successor may listen by then; its health would not be watched."""
    async def scenario() -> None:
        file, local = tmp_path / "address-1", f"unix:{tmp_path}/shard-0"
        group = ShardGroup([local, f"file:{file}"], credentials=credentials)
        disconnected = asyncio.Event()
        group.on_disconnect = disconnected.set
        async with run_shard("127.0.0.1:0", 1, credentials) as address:
            async with run_shard(local, 0):
                connecting = asyncio.create_task(group.connect())
                while group._ranks == [] or group._ranks[0]._health_task is None:  # noqa: ASYNC110 - gRPC connects
                    await asyncio.sleep(0.01)
            await disconnected.wait()
            async with run_shard(local, 0):
                file.write_text(address)
                with pytest.raises(ShardsLost, match="went away while another was waited for"):
                    await connecting
                await group.connect()
                assert await list_ranks(group) == [0, 1]
                await group.close()
    asyncio.run(scenario())
