"""A host that is not the first one, with one-line programs as shards, and the first host played by the test."""

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.host_credentials import make_self_signed
from support.host_groups import FACTS, make_group

from benchmarks.harness.processes import find_free_port
from launcher.console_output import ConsoleOutput
from launcher.hosts import member
from launcher.hosts.connection import HostConnection, HostConnectionLost, Message, encode_message, read_message
from launcher.hosts.member import HostMember
from launcher.supervisor.launch_plan import ChildSpec
from launcher.supervisor.supervisor import ConfigurationError, LaunchError
from shard.tls_credentials import ShardTlsCredentials, load_credentials

PARSE_ARGUMENTS = "import json, os, sys; told = json.loads(sys.argv[1]); "
READY_PROGRAM = (PARSE_ARGUMENTS + "open(told['file'], 'w').write(sys.argv[1]); "
                 """os.write(told['ready_fd'], b'ready 7 {"address": "127.0.0.1:7"}\\n'); """
                 "os.read(told['parent_fd'], 1)")
FAILING_PROGRAM = PARSE_ARGUMENTS + "os.write(told['ready_fd'], b'failed there is no GPU\\n'); sys.exit(2)"
PEER_LOST_PROGRAM = PARSE_ARGUMENTS + "sys.exit(70)"


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> ShardTlsCredentials:
    return load_credentials(make_self_signed(tmp_path_factory.mktemp("credentials")))


class FirstHost:
    """The first host as a test plays it, and the member that joins it."""

    def __init__(self, credentials: ShardTlsCredentials, folder: Path, program: str, answer: Message) -> None:
        self.credentials, self.file, self._answer = credentials, folder / "told", answer
        self.group = make_group(credentials, find_free_port(), node_rank=1)
        self.hellos: list[Message] = []
        self.joined: asyncio.Queue[HostConnection] = asyncio.Queue()
        self._parent_fd, self._held_open = os.pipe()
        spec = ChildSpec("shard 1", (sys.executable, "-I", "-S", "-c", program), {"file": str(self.file)})
        self.lines: list[str] = []
        output = ConsoleOutput()
        output.log = lambda text, level=0: self.lines.append(text)  # type: ignore[method-assign]
        self.member = HostMember(self.group, FACTS, [spec], self._parent_fd, output=output)
        self._connections: list[HostConnection] = []
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.group.node.master_port,
                                                  ssl=self.credentials.make_server_context())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hellos.append(await read_message(reader))
        writer.write(encode_message(self._answer))
        connection = HostConnection(reader, writer)
        self._connections.append(connection)
        self.joined.put_nowait(connection)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
        if self._server is not None:
            self._server.close()
        os.close(self._parent_fd)
        os.close(self._held_open)


@pytest.fixture
def play(credentials: ShardTlsCredentials, tmp_path: Path) -> Callable[..., None]:
    """Return a function that plays a scenario with a member that runs."""
    def run(scenario: Callable[[FirstHost, "asyncio.Task[None]"], Awaitable[None]], program: str = READY_PROGRAM,
            answer: Message | None = None, server_credentials: ShardTlsCredentials | None = None) -> None:
        async def run_scenario() -> None:
            first = FirstHost(credentials, tmp_path, program, answer or {"model": "/model"})
            if server_credentials is not None:
                first.credentials = server_credentials
            await first.listen()
            running = asyncio.create_task(first.member.run())
            try:
                await scenario(first, running)
            finally:
                running.cancel()
                await asyncio.wait([running])
                await first.close()
        asyncio.run(run_scenario())
    return run


async def start_shards(connection: HostConnection, name: str = "run-1") -> Message:
    """Let the member start its shards, and return its report."""
    connection.send({"start": name})
    return await connection.receive()


def test_member_joins_with_the_secret_and_its_facts(play: Callable[..., None]) -> None:
    async def scenario(first: FirstHost, _: Any) -> None:
        await first.joined.get()
        assert first.hellos == [{"secret": first.credentials.secret, "node": 1, "facts": FACTS}]
    play(scenario)


def test_shards_start_and_end_as_the_first_host_says(play: Callable[..., None]) -> None:
    async def scenario(first: FirstHost, _: Any) -> None:
        connection = await first.joined.get()
        assert await start_shards(connection) == {"of": "run-1", "addresses": ["127.0.0.1:7"]}
        settings = json.loads(first.file.read_text())
        port = first.group.node.master_port
        assert {name: settings[name] for name in ("socket", "host_address", "meeting_point", "model_label")} == {
            "socket": "127.0.0.1:0", "host_address": "127.0.0.1", "meeting_point": f"127.0.0.1:{port}/run-1",
            "model_label": "/model"}
        assert not first.member.idle.is_set()
        connection.send({"stop": "run-1"})
        assert await connection.receive() == {"of": "run-1", "ended": "was stopped", "is_cause": False,
                                              "is_lasting": False}
        assert first.member.idle.is_set()
        assert (await start_shards(connection, "run-2"))["of"] == "run-2"
    play(scenario)


def test_death_of_a_shard_is_reported_and_the_next_start_awaited(play: Callable[..., None]) -> None:
    async def scenario(first: FirstHost, running: "asyncio.Task[None]") -> None:
        connection = await first.joined.get()
        await start_shards(connection)
        first.member._processes[0].send_signal(signal.SIGKILL)
        assert await connection.receive() == {"of": "run-1", "ended": "shard 1 was ended by signal 9",
                                              "is_cause": False, "is_lasting": False}
        assert (await start_shards(connection, "run-2"))["addresses"] == ["127.0.0.1:7"]
        assert not running.done()
    play(scenario)


def test_shard_that_cannot_start_ends_the_member_after_its_report(play: Callable[..., None]) -> None:
    async def scenario(first: FirstHost, running: "asyncio.Task[None]") -> None:
        connection = await first.joined.get()
        assert await start_shards(connection) == {"of": "run-1", "ended": "shard 1: there is no GPU", "is_cause": True,
                                                  "is_lasting": True}
        with pytest.raises(ConfigurationError, match="shard 1: there is no GPU"):
            await running
    play(scenario, program=FAILING_PROGRAM)


def test_shard_that_ended_with_its_group_leaves_the_member_waiting(play: Callable[..., None]) -> None:
    async def scenario(first: FirstHost, running: "asyncio.Task[None]") -> None:
        connection = await first.joined.get()
        assert (await start_shards(connection))["is_cause"] is False
        assert (await start_shards(connection, "run-2"))["of"] == "run-2"
        assert not running.done()
    play(scenario, program=PEER_LOST_PROGRAM)


def test_member_ends_its_shards_when_the_first_host_is_lost_and_joins_again(play: Callable[..., None]) -> None:
    async def scenario(first: FirstHost, _: Any) -> None:
        connection = await first.joined.get()
        await start_shards(connection)
        await connection.close()
        again = await first.joined.get()
        assert first.member.idle.is_set()
        assert "node 0 is lost: the connection was closed" in first.lines
        assert (await start_shards(again, "other-1"))["of"] == "other-1"
    play(scenario)


def test_member_waits_while_another_process_is_its_node(
        play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "RETRY_SECONDS", 0.01)

    async def scenario(first: FirstHost, running: "asyncio.Task[None]") -> None:
        for _ in range(3):
            await first.joined.get()
        assert not running.done()
        assert first.lines == [f"waiting for node 0 at 127.0.0.1:{first.group.node.master_port}: node 1 is already "
                               "here from 10.0.0.2"]
    play(scenario, answer={"retry": "node 1 is already here from 10.0.0.2"})


def test_member_pauses_before_it_joins_again(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "RETRY_SECONDS", 3600)

    async def scenario(first: FirstHost, _: Any) -> None:
        await (await first.joined.get()).close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.joined.get(), 0.3)
    play(scenario)


@pytest.mark.parametrize("answer", [{"refused": "it has another secret (--shard-credentials)"}])
def test_refusal_ends_the_member_with_the_reason(play: Callable[..., None], answer: Message) -> None:
    async def scenario(first: FirstHost, running: "asyncio.Task[None]") -> None:
        with pytest.raises(LaunchError, match="refused this host: it has another secret") as error:
            await running
        assert error.value.exit_code == 1  # so that systemd tries again: the other host may be changed
        assert len(first.hellos) == 1
    play(scenario, answer=answer)


def test_secret_is_not_sent_to_a_host_with_a_certificate_of_another_ca(
        play: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(first: FirstHost, running: "asyncio.Task[None]") -> None:
        with pytest.raises(LaunchError, match="is not of this host's CA") as error:
            await running
        assert error.value.exit_code == 1
        assert "(--shard-credentials): self-signed certificate" in str(error.value)
        assert first.hellos == []
    play(scenario, server_credentials=load_credentials(make_self_signed(tmp_path / "other")))


@pytest.mark.parametrize(("code", "text"), [(9, "certificate is not yet valid"), (10, "certificate has expired")])
def test_member_waits_for_a_certificate_that_is_valid_now(
        play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, code: int, text: str) -> None:
    monkeypatch.setattr(member, "RETRY_SECONDS", 0.01)
    connect, failures = asyncio.open_connection, iter(range(2))

    async def fail_twice(*arguments: Any, **settings: Any) -> Any:
        if next(failures, None) is None:
            return await connect(*arguments, **settings)
        error = ssl.SSLCertVerificationError()
        error.verify_code, error.verify_message = code, text
        raise error
    monkeypatch.setattr(asyncio, "open_connection", fail_twice)

    async def scenario(first: FirstHost, _: Any) -> None:
        await first.joined.get()
        address = f"127.0.0.1:{first.group.node.master_port}"
        assert first.lines[0] == f"waiting for node 0 at {address}: its certificate: {text}"
    play(scenario)


def test_member_says_that_its_certificate_may_be_the_reason_of_the_end(
        play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(_: asyncio.StreamReader) -> Message:
        raise HostConnectionLost("the connection was closed")

    monkeypatch.setattr(member, "read_message", end)

    async def scenario(first: FirstHost, _: Any) -> None:
        while not first.lines:  # noqa: ASYNC110 - at the first turn of the loop that shows it
            await asyncio.sleep(0)
        assert first.lines[0].endswith("the connection was closed; it may not accept this host's certificate")
    play(scenario)


def test_member_joins_with_renewed_credentials(tmp_path: Path) -> None:
    credentials = load_credentials(make_self_signed(tmp_path / "credentials"))
    renewed = load_credentials(make_self_signed(tmp_path / "credentials", secret="another-secret-of-the-hosts"))

    async def scenario() -> None:
        first = FirstHost(credentials, tmp_path, READY_PROGRAM, {"model": ""})
        first.credentials = renewed
        await first.listen()
        running = asyncio.create_task(first.member.run())
        await asyncio.wait([running, joined := asyncio.create_task(first.joined.get())],
                           return_when=asyncio.FIRST_COMPLETED)
        assert joined.done()
        assert first.hellos[0]["secret"] == "another-secret-of-the-hosts"
        running.cancel()
        await asyncio.wait([running])
        await first.close()
    asyncio.run(scenario())


def test_member_waits_for_the_first_host(credentials: ShardTlsCredentials, tmp_path: Path) -> None:
    async def scenario() -> None:
        first = FirstHost(credentials, tmp_path, READY_PROGRAM, {"model": ""})
        running = asyncio.create_task(first.member.run())
        while not first.lines:  # noqa: ASYNC110 - at the first turn of the loop that shows it
            await asyncio.sleep(0)
        assert first.lines[0].startswith(f"waiting for node 0 at 127.0.0.1:{first.group.node.master_port}: ")
        await first.listen()
        await first.joined.get()
        running.cancel()
        await asyncio.wait([running])
        await first.close()
    asyncio.run(scenario())


