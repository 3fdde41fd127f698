"""Coordinator of several hosts, in the launcher of the first one: it knows which hosts are there, starts and stops
their shards together with its own, and tells the router where they listen.

A host that is lost, or whose shards died, counts as a child that died: the supervisor ends the shards of all hosts and
starts them again, once all hosts are there. The coordinator also keeps the store through which the ranks find each
other. It listens at one address, with TLS, for callers that have the secret.
"""

import asyncio
import errno
import os
import signal
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.console_output import ConsoleOutput
from launcher.hosts.config_consistency import find_differences
from launcher.hosts.connection import (
    HELLO_TIMEOUT_SECONDS,
    MAX_LINE_BYTES,
    HostConnection,
    HostConnectionLost,
    Message,
    close_writer,
    encode_message,
    read_message,
)
from launcher.hosts.group_plan import GroupPlan
from launcher.hosts.rendezvous_store import RendezvousStore
from launcher.supervisor.supervisor import ConfigurationError, LaunchError, RemoteHosts, ShardMember
from shard.tls_credentials import CREDENTIALS_FLAG, format_address

HANDSHAKE_TIMEOUT_SECONDS = 3.0  # of TLS
MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS = 128, 32  # connections before their first message; a host has a few per shard
MAX_WARNINGS = 100  # of different texts


class HostShards:
    """The shards of one other host, from one start to their end."""

    is_remote = True

    def __init__(self, node_rank: int, connection: HostConnection, start_name: str,
                 address_files: Sequence[Path]) -> None:
        loop = asyncio.get_running_loop()
        self.ready_task: asyncio.Future[bool] = loop.create_future()
        self.exit_task: asyncio.Future[int] = loop.create_future()
        self.has_own_exit_cause = self.will_rejoin = False
        self.connection = connection
        self._name = f"node {node_rank} ({connection.remote_host})"
        self._start_name = start_name
        self._address_files = address_files
        self._reason, self._is_lasting = "", False
        connection.send({"start": start_name})

    def apply_report(self, message: Message) -> None:
        """Take a report of the host. One about an earlier start is dropped."""
        if message.get("of") != self._start_name or self.exit_task.done():
            return
        if "addresses" in message:
            for file, address in zip(self._address_files, message["addresses"], strict=True):
                write_atomically(file, str(address))
            if not self.ready_task.done():
                self.ready_task.set_result(True)
        else:
            self.has_own_exit_cause, self._is_lasting = bool(message["is_cause"]), bool(message["is_lasting"])
            self._finish(str(message["ended"]))

    def mark_lost(self, reason: str) -> None:
        """The host itself is lost, and with it its shards."""
        if not self.exit_task.done():
            self.has_own_exit_cause = self.will_rejoin = True
            self._finish(f"is lost: {reason}")

    def _finish(self, reason: str) -> None:
        self._reason = reason
        self._remove_address_files()
        if not self.ready_task.done():
            self.ready_task.set_result(False)
        self.exit_task.set_result(1)

    def _remove_address_files(self) -> None:
        for file in self._address_files:
            file.unlink(missing_ok=True)

    def send_signal(self, signal_number: signal.Signals) -> None:  # noqa: ARG002 - that of a ShardMember
        """Ask the host to end its shards, whatever the signal."""
        self._remove_address_files()
        if not self.exit_task.done():
            self.connection.send({"stop": self._start_name})

    def make_error(self) -> LaunchError:
        return (ConfigurationError if self._is_lasting else LaunchError)(self.describe_exit())

    def describe_exit(self) -> str:
        return f"{self._name} {self._reason}" if self.will_rejoin else f"{self._name}: {self._reason}"

    async def wait_until_closed(self) -> None:
        """Return: nothing is left of the shards when their host reports their end."""


class HostCoordinator(RemoteHosts):
    """All other hosts of one model."""

    def __init__(self, group: GroupPlan, facts: Mapping[str, Any], *,
                 get_address_files: Callable[[int], Sequence[Path]], model_label: str, output: ConsoleOutput) -> None:
        """`facts` must be the same on all hosts; `get_address_files` returns the files for the addresses of a node's
        shards."""
        self._group, self._node, self._credentials, self._facts = group, group.node, group.credentials, facts
        self._get_address_files = get_address_files
        self._model_label, self._output = model_label, output
        self._connections: dict[int, HostConnection] = {}  # of the hosts that are there, by node
        self._joined = asyncio.Event()  # set when a host joins
        self._shards: dict[int, HostShards] = {}  # of the current start, by node
        self._store: RendezvousStore | None = None  # of the current start
        self._server: asyncio.Server | None = None
        self._callers: set[asyncio.Task[None]] = set()
        self._strangers = Counter[str]()  # connections whose first message has not come, by address
        self._warnings: set[str] = set()  # about callers, since a host last joined

    async def start_shards(self, start_number: int) -> Sequence[ShardMember]:
        if self._server is None:
            self._server = await self._listen()
        self._close_store()
        self._credentials = self._credentials.reload()
        await self._wait_for_hosts()
        self._store = store = RendezvousStore(f"{self._group.run_name}-{start_number}")
        self._shards = {node: HostShards(node, connection, store.name, self._get_address_files(node))
                        for node, connection in sorted(self._connections.items())}
        return list(self._shards.values())

    def _close_store(self) -> None:
        """Let go the ranks of the last start, and those of it that come late."""
        if self._store is not None:
            self._store.close()
        self._store = None

    async def close(self) -> None:
        self._close_store()
        if self._server is not None:
            self._server.close()
        for caller in self._callers:
            caller.cancel()
        if self._callers:
            await asyncio.wait(self._callers)

    async def _listen(self) -> asyncio.Server:
        node = self._node
        try:
            return await asyncio.start_server(
                self._accept_caller, self._group.master_host, node.master_port, limit=MAX_LINE_BYTES)
        except OSError as error:
            advice = ("another process listens there; give --dist-init-addr another port"
                      if error.errno == errno.EADDRINUSE else "--dist-init-addr must be an address of this host")
            raise LaunchError(
                f"cannot listen for other nodes at {format_address(self._group.master_host, node.master_port)} "
                f"({os.strerror(error.errno or 0)}); {advice}") from error

    async def _wait_for_hosts(self) -> None:
        expected, shown = set(range(1, self._node.num_nodes)), set[int]()
        while missing := expected - set(self._connections):
            if missing != shown:
                shown = missing
                self._output.log(f"waiting for {describe_nodes(missing)} of {self._node.num_nodes} at "
                                 + format_address(self._group.master_host, self._node.master_port))
            self._joined.clear()
            await self._joined.wait()

    # -- callers

    def _accept_caller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = (writer.get_extra_info("peername") or ("",))[0]
        if self._strangers.total() >= MAX_STRANGERS or self._strangers[address] >= MAX_STRANGERS_PER_ADDRESS:
            writer.transport.abort()
            return
        # What comes is for TLS: the plain reader must not take any of it before TLS begins.
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket
        self._strangers[address] += 1
        caller = asyncio.create_task(self._serve_caller(reader, writer, address))
        self._callers.add(caller)
        caller.add_done_callback(self._callers.discard)

    async def _serve_caller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        """Serve a launcher or a rank of another host. Nothing is done for a caller without the secret."""
        try:
            hello = await self._read_hello(reader, writer, address)
            if not self._credentials.accepts(hello.get("secret")):
                self._warn_once(f"refused {address}: it has another secret")
                writer.write(encode_message({"refused": f"it has another secret ({CREDENTIALS_FLAG})"}))
            elif "store" in hello:
                if self._store is not None and hello["store"] == self._store.name:
                    await self._store.serve(reader, writer)
            else:
                await self._serve_host(hello, reader, writer)
        except (HostConnectionLost, OSError, TimeoutError):
            pass
        finally:
            await close_writer(writer)

    async def _read_hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> Message:
        """Begin TLS and return the first message. Raises HostConnectionLost, OSError or TimeoutError."""
        try:
            await writer.start_tls(self._credentials.make_server_context(),
                                   ssl_handshake_timeout=HANDSHAKE_TIMEOUT_SECONDS)
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                return await read_message(reader)
        except ssl.SSLError as error:
            self._warn_once(f"refused {address}: TLS failed, {getattr(error, 'verify_message', '') or error.reason}")
            raise
        finally:
            self._strangers[address] -= 1
            self._strangers += Counter()  # drops those at zero

    async def _serve_host(self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node, facts = hello.get("node"), hello.get("facts")
        if not isinstance(node, int) or not 0 < node < self._node.num_nodes or not isinstance(facts, dict):
            reason = f"nodes that join it are from 1 to {self._node.num_nodes - 1}, got {node}"
            writer.write(encode_message({"refused": reason}))
            return
        if differences := find_differences(self._facts, facts):
            self._warn_once(f"refused node {node}, which differs from this one: {differences}")
            writer.write(encode_message({"refused": f"this node differs from it: {differences}"}))
            return
        if (present := self._connections.get(node)) is not None:  # a half-open connection is lost soon
            self._warn_once(f"node {node} is already here from {present.remote_host}: another process with the same "
                            f"--node-rank, from {writer.get_extra_info('peername')[0]}, has to wait")
            writer.write(encode_message({"retry": f"node {node} is already here from {present.remote_host}"}))
            return
        connection = HostConnection(reader, writer)
        connection.send({"model": self._model_label})
        self._connections[node] = connection
        self._warnings.clear()
        self._output.log(f"node {node} of {self._node.num_nodes} has joined from {connection.remote_host}")
        self._joined.set()
        reason = "its connection was ended here"
        try:
            while True:
                message = await connection.receive()
                if (shards := self._shards.get(node)) is not None and shards.connection is connection:
                    shards.apply_report(message)
        except HostConnectionLost as lost:
            reason = str(lost)
        except OSError as error:
            reason = f"cannot write the addresses: {error.strerror}"
        except (KeyError, TypeError, ValueError):
            reason = "it sent a report that is none"
        finally:
            self._lose_host(node, connection, reason)
            await connection.close()

    def _warn_once(self, text: str) -> None:
        """Warn of a caller, which tries again and again."""
        if text not in self._warnings and len(self._warnings) < MAX_WARNINGS:
            self._warnings.add(text)
            self._output.warn(text)

    def _lose_host(self, node: int, connection: HostConnection, reason: str) -> None:
        if self._connections.get(node) is connection:
            del self._connections[node]
        if (shards := self._shards.get(node)) is not None and shards.connection is connection:
            shards.mark_lost(reason)


def write_atomically(file: Path, text: str) -> None:
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.write_text(text)
    unfinished.replace(file)


def describe_nodes(nodes: set[int]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, sorted(nodes)))}"
