"""A shard on a TCP port answers callers with a certificate of its CA and the secret, and nobody else."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.host_credentials import SECRET, make_self_signed, make_signed

from router.shards.rank_address import REMOTE_OPTIONS, open_channel
from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.rpc.authentication import check_address_is_protected
from shard.rpc.server import HealthService, serve_grpc
from shard.rpc.service import ShardService
from shard.simulator.worker import SimulatedWorker
from shard.tls_credentials import ShardTlsCredentials, load_credentials

METHODS = ("/weft.shard.Shard/Info", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
           "/weft.shard.Shard/Steps", "/weft.shard.Shard/Reset", "/no.such.Service/Method")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the credentials of this group, `ours`, and of another CA, `theirs`."""
    folder = tmp_path_factory.mktemp("credentials")
    make_self_signed(folder / "ours")
    make_self_signed(folder / "theirs")
    return folder


def run_with_shard(folder: Path, scenario: Callable[[int, SimulatedWorker], Any], address: str = "127.0.0.1:0") -> None:
    """Run a scenario with the port of a shard that listens with our credentials."""
    async def run() -> None:
        config = ShardConfig(address)
        worker = SimulatedWorker(config)
        service = ShardService(worker, config.gap_timeout)
        async with serve_grpc(config.socket, service, HealthService(60.0, lambda: None),
                              load_credentials(str(folder / "ours"))) as port:
            await scenario(port, worker)
    asyncio.run(run())


async def get_refusal(channel: grpc.aio.Channel, method: str = METHODS[0]) -> grpc.StatusCode:
    """Open a call of a method, whatever its kind, that a shard refuses; return the status.

    Nothing is sent, because a shard refuses a call before it reads a message, and gRPC reports a message that it sends
    into a refused call as INTERNAL.
    """
    stream = channel.stream_stream(method)(timeout=5.0)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stream.read()
    await channel.close()
    return error.value.code()


async def check_is_answered(channel: grpc.aio.Channel) -> None:
    info = channel.unary_unary("/weft.shard.Shard/Info", response_deserializer=pb.InfoAnswer.FromString)
    assert (await info(b"", timeout=5.0)).model == "simulated"
    await channel.close()


def test_router_with_the_credentials_is_answered(folder: Path) -> None:
    async def scenario(port: int, _: SimulatedWorker) -> None:
        await check_is_answered(open_channel("file:/address", f"127.0.0.1:{port}", (),
                                             load_credentials(str(folder / "ours"))))
    run_with_shard(folder, scenario)


@pytest.mark.parametrize("method", METHODS)
def test_wrong_secret_is_refused_for_every_method(folder: Path, method: str) -> None:
    wrong = replace(load_credentials(str(folder / "ours")), secret=SECRET + "!")

    async def scenario(port: int, worker: SimulatedWorker) -> None:
        assert await get_refusal(open_channel("file:/address", f"127.0.0.1:{port}", (), wrong),
                                 method) is grpc.StatusCode.UNAUTHENTICATED
        assert worker.info().epoch == 0
    run_with_shard(folder, scenario)


def open_without_secret(credentials: ShardTlsCredentials, port: int) -> grpc.aio.Channel:
    tls = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", tls, options=REMOTE_OPTIONS)


def test_call_without_a_secret_is_refused(folder: Path) -> None:
    async def scenario(port: int, _: SimulatedWorker) -> None:
        channel = open_without_secret(load_credentials(str(folder / "ours")), port)
        assert await get_refusal(channel) is grpc.StatusCode.UNAUTHENTICATED
    run_with_shard(folder, scenario)


def trust_ours_with_their_certificate(folder: Path) -> ShardTlsCredentials:
    ours, theirs = (load_credentials(str(folder / name)) for name in ("ours", "theirs"))
    return replace(theirs, ca=ours.ca)


def trust_ours_without_certificate(folder: Path) -> ShardTlsCredentials:
    return replace(load_credentials(str(folder / "ours")), key=None, certificate=None)


def trust_theirs(folder: Path) -> ShardTlsCredentials:
    return load_credentials(str(folder / "theirs"))


@pytest.mark.parametrize("make_credentials", [trust_ours_with_their_certificate, trust_ours_without_certificate,
                                              trust_theirs])
def test_certificate_of_another_ca_gets_no_connection(
        folder: Path, make_credentials: Callable[[Path], ShardTlsCredentials]) -> None:
    async def scenario(port: int, _: SimulatedWorker) -> None:
        channel = open_channel("file:/address", f"127.0.0.1:{port}", (), make_credentials(folder))
        assert await get_refusal(channel) is grpc.StatusCode.UNAVAILABLE
    run_with_shard(folder, scenario)


def test_caller_without_tls_gets_no_connection(folder: Path) -> None:
    async def scenario(port: int, _: SimulatedWorker) -> None:
        assert await get_refusal(grpc.aio.insecure_channel(f"127.0.0.1:{port}")) is grpc.StatusCode.UNAVAILABLE
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
    run_with_shard(folder, scenario)


def test_hosts_may_have_certificates_of_their_own(folder: Path, tmp_path: Path) -> None:
    credentials = load_credentials(make_signed(tmp_path / "host", folder / "ours"))

    async def scenario(port: int, _: SimulatedWorker) -> None:
        await check_is_answered(open_channel("file:/address", f"127.0.0.1:{port}", (), credentials))
    run_with_shard(folder, scenario)


def test_unix_socket_needs_no_credentials(folder: Path, tmp_path: Path) -> None:
    socket = f"unix:{tmp_path}/shard"

    async def scenario(_: int, __: SimulatedWorker) -> None:
        await check_is_answered(grpc.aio.insecure_channel(socket))
    run_with_shard(folder, scenario, socket)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:0", "localhost:0"])
def test_address_that_others_reach_needs_credentials(folder: Path, address: str) -> None:
    with pytest.raises(ValueError, match=f"listens at {address} only with TLS and a secret, which --shard-credentials"):
        check_address_is_protected(address, None)
    check_address_is_protected(address, load_credentials(str(folder / "ours")))


@pytest.mark.slow
def test_shard_started_by_hand_refuses_such_an_address_with_exit_code_2() -> None:
    settings = dumps(asdict(ShardConfig("0.0.0.0:0")))
    process = subprocess.run([sys.executable, "-P", "-m", "shard.rpc.server", settings], check=False,
                             capture_output=True, text=True)
    assert process.returncode == 2
    [line] = process.stderr.splitlines()
    assert line.startswith("weft: a shard listens at 0.0.0.0:0 only with TLS and a secret")
