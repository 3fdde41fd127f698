"""One model on two hosts: two network namespaces with a weft each, and a shard on each."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.host_credentials import make_self_signed
from support.servers.concurrent_streams import HealthProbe, make_stream_body, run_disturbed_streams
from support.servers.network_namespaces import (
    CLIENT_ADDRESS,
    HOST_ADDRESSES,
    FirstHost,
    HostPair,
    create_host_pair,
    find_missing_privilege,
)
from support.servers.weft_process import (
    RUNNING_SERVERS,
    SIMULATED_MODEL,
    WEFT_EXECUTABLE,
    iter_stream_events,
    run_weft_process,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BODIES = [make_stream_body(number) for number in range(64)]
DEMO_MODEL = "weft/demo"
REAL_MODELS = [pytest.param(model, marks=pytest.mark.long) for model in (DEMO_MODEL, "llama")]
# one thread, as a host with a shard per core has; the number of threads is part of what makes bytes equal
SETTINGS = ("--threads", "1", "--max-batch-total-tokens", "65536", "--max-batch-size", "64")


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostPair]:
    if reason := find_missing_privilege():
        pytest.skip(reason)
    with create_host_pair() as pair:
        yield pair


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_self_signed(tmp_path_factory.mktemp("credentials"))


class Group:
    """weft on both hosts; host 1 may be lost and come again."""

    def __init__(self, hosts: HostPair, folder: Path, *settings: str) -> None:
        self.hosts, self._folder = hosts, folder
        self._settings = ("--nnodes", "2", "--dist-init-addr", HOST_ADDRESSES[0], *settings)
        self._members: list[subprocess.Popen[bytes]] = []
        self._is_member_told_to_stop = False
        self.start_member()
        self.first = FirstHost(folder, "--hostname", CLIENT_ADDRESS, *self._settings,
                               command=hosts.make_command(0, WEFT_EXECUTABLE))

    def start_member(self) -> None:
        log = (self._folder / f"member-{len(self._members)}").open("wb")
        self._members.append(subprocess.Popen(self.hosts.make_command(
            1, WEFT_EXECUTABLE, "serve", "--node-rank", "1", *self._settings), cwd=self._folder, stderr=log))
        log.close()

    def read_member_log(self) -> str:
        return (self._folder / f"member-{len(self._members) - 1}").read_text()

    def lose_and_restart_member(self) -> None:
        self.hosts.kill_processes(1)
        self._members[-1].wait()
        self.start_member()

    def send_signal_to_member(self, number: signal.Signals) -> None:
        self._is_member_told_to_stop = number is signal.SIGTERM
        self._members[-1].send_signal(number)

    def stop(self) -> int:
        """Stop host 0 and then host 1; return the exit code of host 1."""
        if self.first.process.returncode is None:
            self.first.send_signal(signal.SIGTERM)
            self.first.wait_for_exit()
        if not self._is_member_told_to_stop:  # a second signal may meet a process that handles none any more
            self._members[-1].send_signal(signal.SIGTERM)
        return self._members[-1].wait()

    def wait(self) -> None:
        """Wait for all processes, which have been stopped or killed."""
        if self.first.process.returncode is None:
            self.first.wait_for_exit()
        for member in self._members:
            member.wait()


@contextmanager
def run_group(hosts: HostPair, folder: Path, *settings: str) -> Iterator[Group]:
    group = None
    try:
        group = Group(hosts, folder, *settings)
        RUNNING_SERVERS.append(group.first)
        yield group
        assert group.stop() == 0
    finally:
        for host in range(2):
            with suppress(ProcessLookupError):
                hosts.kill_processes(host)
        if group is not None:
            RUNNING_SERVERS.remove(group.first)
            group.wait()


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    name = str(request.param)
    return name if "/" in name else str(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), name))


def run_streams_on_one_host(folder: Path, model: str) -> list[Any]:
    with run_weft_process(folder, model, "--num-shard", "2", *SETTINGS) as weft:
        return run_disturbed_streams(weft, bodies=BODIES)


@pytest.mark.parametrize("model", [SIMULATED_MODEL, *REAL_MODELS], indirect=True)
def test_streams_go_on_with_the_same_tokens_when_a_host_is_lost(
        hosts: HostPair, credentials: str, tmp_path: Path, model: str) -> None:
    expected = run_streams_on_one_host(tmp_path, model)
    with run_group(hosts, tmp_path, model, "--shard-credentials", credentials, *SETTINGS) as group:
        async def lose_host(_: HealthProbe) -> None:
            await asyncio.to_thread(group.lose_and_restart_member)
        if model != SIMULATED_MODEL:
            assert run_disturbed_streams(group.first, bodies=BODIES) == expected
        assert run_disturbed_streams(group.first, lose_host, bodies=BODIES) == expected
        assert group.first.get_info()["num_shard"] == 2
        assert "joined node 0 at 198.18.78.1:29500 as node 1 of 2" in group.read_member_log()
        # clients use loopback or the named address; weft's own ports are at the address between the hosts
        assert group.hosts.list_listening_addresses(0) <= {HOST_ADDRESSES[0], CLIENT_ADDRESS}
        assert group.hosts.list_listening_addresses(1) == {HOST_ADDRESSES[1]}


@pytest.mark.long
@pytest.mark.parametrize("model", [DEMO_MODEL], indirect=True)
def test_streams_go_on_when_the_hosts_lose_sight_of_each_other(
        hosts: HostPair, credentials: str, tmp_path: Path, model: str) -> None:
    expected = run_streams_on_one_host(tmp_path, model)
    with run_group(hosts, tmp_path, model, "--shard-credentials", credentials, *SETTINGS) as group:
        async def cut_link(probe: HealthProbe) -> None:
            await asyncio.to_thread(group.hosts.set_link, "down")
            await probe.wait_for_status("/ready", 503)
            await asyncio.to_thread(wait_for_text, group.read_member_log, "node 0 is lost: no sign of life")
            await asyncio.to_thread(group.hosts.set_link, "up")
            await probe.wait_for_status("/ready", 200)
        assert run_disturbed_streams(group.first, cut_link, bodies=BODIES) == expected


def wait_for_text(read: Callable[[], str], text: str) -> None:
    while text not in read():
        time.sleep(0.05)


STRANGER = """
import asyncio, grpc, socket, ssl, sys
async def call(target):
    async with grpc.aio.insecure_channel(target) as channel:
        try:
            await channel.unary_unary("/weft.shard.Shard/Info")(b"", timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code().name
async def talk(host, port):
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'{"secret": "guessed"}\\n')
    return len(await reader.read())
host, *ports = sys.argv[1:]
for port in ports:
    print(asyncio.run(call(f"{host}:{port}")), asyncio.run(talk(host, port)) < 10)
"""


@pytest.mark.long
def test_strangers_and_hosts_that_differ_get_nothing(hosts: HostPair, credentials: str, tmp_path: Path) -> None:
    """The unit tests have wrong secrets and certificates; here a process without TLS tries the real ports."""
    with run_group(hosts, tmp_path, SIMULATED_MODEL, "--shard-credentials", credentials, *SETTINGS) as group:
        python = Path(WEFT_EXECUTABLE).with_name("python")
        ports = [line.split()[3].rsplit(":", 1)[1] for line in hosts.run_command(1, "ss", "-Hltn").splitlines()]
        assert ports
        assert set(hosts.run_command(1, python, "-P", "-c", STRANGER, HOST_ADDRESSES[1],
                                     *ports).splitlines()) == {"UNAVAILABLE True"}
        assert hosts.run_command(1, python, "-P", "-c", STRANGER, HOST_ADDRESSES[0],
                                 "29500").splitlines() == ["UNAVAILABLE True"]
        process = subprocess.run(hosts.make_command(
            1, WEFT_EXECUTABLE, "serve", SIMULATED_MODEL, "--nnodes", "2", "--node-rank", "1", "--dist-init-addr",
            HOST_ADDRESSES[0], "--shard-credentials", credentials, "--dtype", "float32"),
            capture_output=True, text=True, check=False)
        assert process.returncode == 1
        assert process.stderr.splitlines()[-1] == (
            "weft: node 0 at 198.18.78.1:29500 refused this host: this node differs from it: --dtype float32 instead "
            "of auto")
        assert group.first.generate(5)


def test_group_that_is_stopped_at_once_finishes_its_requests(
        hosts: HostPair, credentials: str, tmp_path: Path) -> None:
    with run_group(hosts, tmp_path, SIMULATED_MODEL, "--shard-credentials", credentials, *SETTINGS) as group:
        events = iter_stream_events(group.first.post_prompt("/generate_stream", 60))
        next(events)
        group.send_signal_to_member(signal.SIGTERM)
        group.first.send_signal(signal.SIGTERM)
        assert len([*events]) == 59
        assert group.first.wait_for_exit()[0] == 0


@pytest.mark.parametrize("node_rank", ["0", "1"])
def test_server_that_others_could_reach_without_credentials_does_not_start(tmp_path: Path, node_rank: str) -> None:
    process = subprocess.run([WEFT_EXECUTABLE, "serve", SIMULATED_MODEL, "--port", "0", "--nnodes", "2", "--node-rank",
                              node_rank, "--dist-init-addr", "10.0.0.1"], cwd=tmp_path, capture_output=True, text=True,
                             check=False)
    assert process.returncode == 2
    assert process.stderr == ("weft: 2 nodes (--nnodes) need --shard-credentials: shards are reached over a network "
                              "only with TLS and a secret\n")
