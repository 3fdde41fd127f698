"""The first host's coordinator, with other hosts that the tests play."""

import asyncio
import io
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.host_credentials import make_self_signed
from support.host_groups import FACTS, list_address_files, make_group

from benchmarks.harness.processes import find_free_port
from launcher.console_output import ConsoleOutput
from launcher.hosts import coordinator
from launcher.hosts.connection import HostConnection, HostConnectionLost, encode_message, read_message
from launcher.hosts.coordinator import HostCoordinator
from launcher.supervisor.supervisor import ConfigurationError, LaunchError
from shard.tls_credentials import TLS_NAME, ShardTlsCredentials, load_credentials


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> ShardTlsCredentials:
    return load_credentials(make_self_signed(tmp_path_factory.mktemp("credentials")))


class RecordingOutput(ConsoleOutput):
    """Output whose lines a test reads."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def log(self, text: str, level: int = 0) -> None:
        self.lines.append(text)

    def make_progress_stream(self) -> Any:
        return io.StringIO()


class Harness:
    """A coordinator, and callers on loopback."""

    def __init__(self, credentials: ShardTlsCredentials, folder: Path, num_nodes: int) -> None:
        self.credentials, self.folder, self.output = credentials, folder, RecordingOutput()
        self.group = make_group(credentials, find_free_port(), num_nodes=num_nodes)
        self.coordinator = HostCoordinator(
            self.group, FACTS, get_address_files=partial(self.group.list_address_files, str(folder)),
            model_label="/model", output=self.output)
        self._connections: list[HostConnection] = []

    async def call(self, hello: dict[str, Any], credentials: ShardTlsCredentials | None = None) -> tuple[
            asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect and send a first message, with the secret."""
        used = credentials or self.credentials
        reader, writer = await asyncio.open_connection("127.0.0.1", self.group.node.master_port,
                                                       ssl=used.make_client_context(), server_hostname=TLS_NAME)
        writer.write(encode_message({"secret": used.secret} | hello))
        return reader, writer

    async def ask(self, hello: dict[str, Any], credentials: ShardTlsCredentials | None = None) -> dict[str, Any]:
        """Return the first answer to a first message."""
        reader, writer = await self.call(hello, credentials)
        try:
            return await read_message(reader)
        finally:
            writer.close()

    async def join(self, node: int = 1) -> HostConnection:
        reader, writer = await self.call({"node": node, "facts": FACTS})
        assert await read_message(reader) in ({"model": "/model"}, {})
        connection = HostConnection(reader, writer)
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        await self.coordinator.close()
        for connection in self._connections:
            await connection.close()

    @property
    def addresses(self) -> list[str]:
        """The addresses that the router finds."""
        return [file.read_text() for file in list_address_files(self.folder, self.group) if file.exists()]


@pytest.fixture
def play(credentials: ShardTlsCredentials, tmp_path: Path) -> Callable[..., None]:
    """Return a function that plays a scenario with a coordinator whose server listens."""
    def run(scenario: Callable[[Harness], Awaitable[None]], num_nodes: int = 2) -> None:
        async def run_scenario() -> None:
            async with open_harness(credentials, tmp_path, num_nodes) as harness:
                await scenario(harness)
        asyncio.run(run_scenario())
    return run


@asynccontextmanager
async def open_harness(credentials: ShardTlsCredentials, folder: Path, num_nodes: int) -> AsyncIterator[Harness]:
    harness = Harness(credentials, folder, num_nodes)
    harness.coordinator._server = await harness.coordinator._listen()
    try:
        yield harness
    finally:
        await harness.close()


def test_shards_start_once_all_hosts_are_there(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        starting = asyncio.create_task(harness.coordinator.start_shards(1))
        second = await harness.join(2)
        first = await harness.join(1)
        members = await starting
        assert [member.describe_exit() for member in members] == ["node 1 (127.0.0.1): ", "node 2 (127.0.0.1): "]
        assert await first.receive() == await second.receive() == {"start": "run-1"}
        port = harness.group.node.master_port
        assert f"waiting for nodes 1, 2 of 3 at 127.0.0.1:{port}" in harness.output.lines
        assert "node 2 of 3 has joined from 127.0.0.1" in harness.output.lines
    play(scenario, num_nodes=3)


def test_router_finds_addresses_while_the_shards_of_a_host_are_ready(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        connection = await harness.join()
        [shards] = await harness.coordinator.start_shards(1)
        assert harness.addresses == []
        connection.send({"of": "run-1", "addresses": ["127.0.0.1:7"]})
        assert await shards.ready_task
        assert harness.addresses == ["127.0.0.1:7"]
        shards.send_signal(signal.SIGKILL)
        assert harness.addresses == []
        assert await connection.receive() == {"start": "run-1"}
        assert await connection.receive() == {"stop": "run-1"}
        connection.send({"of": "run-1", "ended": "was stopped", "is_cause": False, "is_lasting": False})
        await shards.exit_task
        assert not shards.has_own_exit_cause
    play(scenario)


@pytest.mark.parametrize(("is_lasting", "error_class"), [(True, ConfigurationError), (False, LaunchError)])
def test_cause_that_a_host_reports_is_that_of_the_end(
        play: Callable[..., None], is_lasting: bool, error_class: type[LaunchError]) -> None:
    async def scenario(harness: Harness) -> None:
        connection = await harness.join()
        [shards] = await harness.coordinator.start_shards(1)
        connection.send({"of": "run-1", "ended": "shard 1: no GPU", "is_cause": True, "is_lasting": is_lasting})
        await shards.exit_task
        assert (await shards.ready_task, shards.has_own_exit_cause, shards.will_rejoin) == (False, True, False)
        error = shards.make_error()
        assert type(error) is error_class
        assert str(error) == "node 1 (127.0.0.1): shard 1: no GPU"
    play(scenario)


def test_lost_host_ends_its_shards_and_is_awaited(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        connection = await harness.join()
        [shards] = await harness.coordinator.start_shards(1)
        connection.send({"of": "run-1", "addresses": ["127.0.0.1:7"]})
        await shards.ready_task
        await connection.close()
        await shards.exit_task
        assert (shards.will_rejoin, harness.addresses) == (True, [])
        assert shards.describe_exit() == "node 1 (127.0.0.1) is lost: the connection was closed"
        starting = asyncio.create_task(harness.coordinator.start_shards(2))
        again = await harness.join()
        await starting
        assert await again.receive() == {"start": "run-2"}
    play(scenario)


@pytest.mark.parametrize("report", [{"addresses": []}, {"addresses": 7}, {"ended": "died"}])
def test_host_whose_report_is_none_is_lost(play: Callable[..., None], report: dict[str, Any]) -> None:
    async def scenario(harness: Harness) -> None:
        connection = await harness.join()
        [shards] = await harness.coordinator.start_shards(1)
        connection.send({"of": "run-1"} | report)
        await asyncio.wait_for(shards.exit_task, 5)
        assert shards.describe_exit() == "node 1 (127.0.0.1) is lost: it sent a report that is none"
        assert not harness.coordinator._connections
    play(scenario)


def test_host_whose_addresses_cannot_be_written_is_lost_with_the_reason(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        connection = await harness.join()
        harness.coordinator._get_address_files = lambda _: [harness.folder / "missing" / "address-1"]
        [shards] = await harness.coordinator.start_shards(1)
        connection.send({"of": "run-1", "addresses": ["127.0.0.1:7"]})
        await asyncio.wait_for(shards.exit_task, 5)
        assert shards.describe_exit() == (
            "node 1 (127.0.0.1) is lost: cannot write the addresses: No such file or directory")
        assert not harness.coordinator._connections
    play(scenario)


def test_reports_about_an_earlier_start_are_dropped(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        connection = await harness.join()
        [old] = await harness.coordinator.start_shards(1)
        connection.send({"of": "run-1", "ended": "died", "is_cause": False, "is_lasting": False})
        await old.exit_task
        [new] = await harness.coordinator.start_shards(2)
        connection.send({"of": "run-1", "addresses": ["127.0.0.1:6"]})
        connection.send({"of": "run-2", "addresses": ["127.0.0.1:7"]})
        await new.ready_task
        assert harness.addresses == ["127.0.0.1:7"]
    play(scenario)


def test_process_that_joins_as_a_node_that_is_there_waits_until_that_is_lost(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        first = await harness.join()
        [shards] = await harness.coordinator.start_shards(1)
        hello = {"node": 1, "facts": FACTS}
        answers = await asyncio.gather(*(harness.ask(hello) for _ in range(3)))
        assert answers == [{"retry": "node 1 is already here from 127.0.0.1"}] * 3
        assert [line for line in harness.output.lines if "already" in line] == [
            "node 1 is already here from 127.0.0.1: another process with the same --node-rank, from 127.0.0.1, has to "
            "wait"]
        assert await first.receive() == {"start": "run-1"}
        assert not shards.exit_task.done()
        await first.close()
        await shards.exit_task
        await harness.join()
    play(scenario)


def test_of_two_processes_that_join_at_once_after_a_loss_one_waits(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await (await harness.join()).close()
        while harness.coordinator._connections:  # noqa: ASYNC110 - at the first turn of the loop that shows it
            await asyncio.sleep(0)
        answers = await asyncio.gather(*((harness.call({"node": 1, "facts": FACTS})) for _ in range(2)))
        received = [await read_message(reader) for reader, _ in answers]
        assert sum("retry" in message for message in received) == 1
        for _, writer in answers:
            writer.close()
    play(scenario)


def test_host_with_renewed_credentials_joins_at_the_next_start(tmp_path: Path) -> None:
    credentials = load_credentials(make_self_signed(tmp_path / "credentials"))
    renewed = load_credentials(make_self_signed(tmp_path / "credentials", secret="another-secret-of-the-hosts"))

    async def scenario() -> None:
        async with open_harness(credentials, tmp_path, 2) as harness:
            harness.credentials = renewed
            starting = asyncio.create_task(harness.coordinator.start_shards(1))
            await harness.join()
            await starting
    asyncio.run(scenario())


@pytest.mark.parametrize(("hello", "reason"), [
    ({"node": 1, "facts": FACTS | {"--dtype": "int8"}}, "this node differs from it: --dtype int8 instead of auto"),
    ({"node": 2, "facts": FACTS}, "nodes that join it are from 1 to 1, got 2"),
    ({"node": 0, "facts": FACTS}, "nodes that join it are from 1 to 1, got 0"),
    ({"node": "1", "facts": FACTS}, "nodes that join it are from 1 to 1, got 1"),
    ({"node": 1}, "nodes that join it are from 1 to 1, got 1"), ({}, "nodes that join it are from 1 to 1, got None")])
def test_host_that_does_not_fit_is_refused_with_the_reason(
        play: Callable[..., None], hello: dict[str, Any], reason: str) -> None:
    async def scenario(harness: Harness) -> None:
        assert await harness.ask(hello) == await harness.ask(hello) == {"refused": reason}
        assert len(harness.output.lines) <= 1  # however often it tries
    play(scenario)


@pytest.mark.parametrize("hello", [{"node": 1, "facts": FACTS}, {"store": "run-1"}, {"store": ""}])
@pytest.mark.parametrize("secret", ["another-secret-of-sixteen", "\ud800", "", None])
def test_caller_without_the_secret_learns_nothing_and_changes_nothing(
        play: Callable[..., None], hello: dict[str, Any], secret: Any) -> None:
    async def scenario(harness: Harness) -> None:
        answer = await harness.ask(hello | {"secret": secret})
        assert answer == {"refused": "it has another secret (--shard-credentials)"}
        assert harness.output.lines == ["refused 127.0.0.1: it has another secret"]
        assert not harness.coordinator._connections
    play(scenario)


def test_caller_with_a_certificate_of_another_ca_gets_no_answer(play: Callable[..., None], tmp_path: Path) -> None:
    other = load_credentials(make_self_signed(tmp_path / "other"))

    async def scenario(harness: Harness) -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            await harness.ask({"node": 1, "facts": FACTS}, other)
        (tmp_path / "other" / "ca.crt").write_bytes(harness.credentials.ca)
        trusting = replace(other, ca=harness.credentials.ca)
        for _ in range(2):
            with pytest.raises((HostConnectionLost, OSError)):
                await harness.ask({"node": 1, "facts": FACTS}, trusting)
        assert "refused 127.0.0.1: TLS failed, self-signed certificate" in harness.output.lines
        assert len(harness.output.lines) == len(set(harness.output.lines))
        assert not harness.coordinator._connections
    play(scenario)


def test_caller_without_tls_gets_no_answer(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.group.node.master_port)
        writer.write(encode_message({"secret": harness.credentials.secret, "node": 1, "facts": FACTS}))
        assert await reader.read() in (b"", b"\x15\x03\x03\x00\x02\x02\x46")  # at most TLS's alert: no such version
        writer.close()
        assert not harness.coordinator._connections
    play(scenario)


def test_callers_that_say_nothing_are_limited_and_leave_room_for_others(
        play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_STRANGERS_PER_ADDRESS", 3)

    async def scenario(harness: Harness) -> None:
        port = harness.group.node.master_port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in silent]
        done, waiting = await asyncio.wait(ended, timeout=0.5)
        assert (len(done), len(waiting)) == (3, 3)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=("127.0.0.2", 0), ssl=harness.credentials.make_client_context(),
            server_hostname=TLS_NAME)
        writer.write(encode_message({"secret": harness.credentials.secret, "node": 1, "facts": FACTS}))
        assert await read_message(reader) in ({"model": "/model"}, {})
        for _, silent_writer in (*silent, (reader, writer)):
            silent_writer.close()
        await asyncio.wait(ended)
        await harness.join()
        assert not harness.coordinator._strangers
    play(scenario)


def test_callers_are_limited_whatever_their_addresses(
        play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_STRANGERS", 2)

    async def scenario(harness: Harness) -> None:
        port = harness.group.node.master_port
        silent = [await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{number}", 0))
                  for number in (2, 3, 4)]
        assert await silent[2][0].read() == b""
        for _, writer in silent:
            writer.close()
    play(scenario)


def test_handshake_that_does_not_end_is_ended(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "HANDSHAKE_TIMEOUT_SECONDS", 0.05)

    async def scenario(harness: Harness) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", harness.group.node.master_port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    play(scenario)


def test_address_of_another_host_cannot_be_listened_at(credentials: ShardTlsCredentials, tmp_path: Path) -> None:
    harness = Harness(credentials, tmp_path, 2)
    group = replace(harness.group, master_host="192.0.2.1")
    elsewhere = HostCoordinator(group, FACTS, get_address_files=lambda _: [], model_label="", output=harness.output)
    with pytest.raises(LaunchError, match="--dist-init-addr must be an address of this host"):
        asyncio.run(elsewhere.start_shards(1))


def test_port_that_another_process_has_is_named(play: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        address = f"127.0.0.1:{harness.group.node.master_port}"
        with pytest.raises(LaunchError) as error:
            await harness.coordinator._listen()
        assert str(error.value) == (f"cannot listen for other nodes at {address} (Address already in use); another "
                                    "process listens there; give --dist-init-addr another port")
    play(scenario)
