"""Launcher of a host that is not the first one: it joins the first one, and starts and ends its shards as that says.

It has no router. When the first host is gone, it ends its shards and waits until it can join again.
"""

import asyncio
import os
import signal
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from launcher.console_output import ConsoleOutput
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
from launcher.supervisor.launch_plan import ChildSpec
from launcher.supervisor.startup_display import StartupDisplay
from launcher.supervisor.supervisor import (
    EXIT_MARGIN_SECONDS,
    STOP_SIGNALS,
    ChildProcess,
    ConfigurationError,
    LaunchError,
    terminate_all,
    wait_for_first_exit,
    wait_until_all_ready,
)
from shard.tls_credentials import CREDENTIALS_FLAG, TLS_NAME, format_address

RETRY_SECONDS = 1.0  # between attempts to join
DATE_CODES = (9, 10)  # of OpenSSL, for a certificate that is not yet valid, or has expired


class HostMember:
    """This host's part of a group."""

    def __init__(self, group: GroupPlan, facts: Mapping[str, Any], shard_specs: Sequence[ChildSpec], parent_fd: int, *,
                 output: ConsoleOutput) -> None:
        node = group.node
        self._node, self._credentials, self._facts = node, group.credentials, facts
        self._shard_specs, self._parent_fd, self._output = shard_specs, parent_fd, output
        self._display = StartupDisplay(output.make_progress_stream())
        self._first_node = format_address(node.master_address, node.master_port)
        self._processes: list[ChildProcess] = []
        self._run_task: asyncio.Task[None] | None = None  # of one start of the shards
        self._has_been_ready = False
        self.idle = asyncio.Event()  # no shards run
        self.idle.set()

    async def run(self) -> None:
        """Take part until cancelled. Raises LaunchError if this host cannot."""
        shown = ""
        while True:
            try:
                connection, model_label = await self._join()
            except (OSError, HostConnectionLost, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                if reason != shown:
                    self._output.log(f"waiting for node 0 at {self._first_node}: {reason}")
                shown = reason
                await asyncio.sleep(RETRY_SECONDS)
                continue
            shown = ""
            try:
                self._output.log(f"joined node 0 at {self._first_node} as node {self._node.node_rank} of "
                                 f"{self._node.num_nodes}")
                await self._follow_commands(connection, model_label)
            except HostConnectionLost as lost:
                self._output.warn(f"node 0 is lost: {lost}")
            finally:
                try:
                    await self._end_shards()
                finally:
                    await connection.close()
            await asyncio.sleep(RETRY_SECONDS)

    async def _join(self) -> tuple[HostConnection, str]:
        """Connect and return the connection and the model's name there. Raises LaunchError if either host refuses
        the other, OSError or HostConnectionLost if node 0 is not there or lets this one wait."""
        self._credentials = self._credentials.reload()
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):  # wait_for may swallow a cancellation
                reader, writer = await asyncio.open_connection(
                    self._node.master_address, self._node.master_port, limit=MAX_LINE_BYTES,
                    server_hostname=TLS_NAME, ssl=self._credentials.make_client_context())
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in DATE_CODES:
                raise HostConnectionLost(f"its certificate: {error.verify_message}") from None
            raise LaunchError(f"the certificate of node 0 at {self._first_node} is not of this host's CA "
                              f"({CREDENTIALS_FLAG}): {error.verify_message}") from None
        writer.write(encode_message({"secret": self._credentials.secret, "node": self._node.node_rank,
                                     "facts": dict(self._facts)}))
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                answer = await read_message(reader)
        except HostConnectionLost as lost:
            await close_writer(writer)
            raise HostConnectionLost(f"{lost}; it may not accept this host's certificate") from None
        except BaseException:
            await close_writer(writer)
            raise
        if "retry" in answer:
            await close_writer(writer)
            raise HostConnectionLost(str(answer["retry"]))
        if "refused" in answer:
            await close_writer(writer)
            raise LaunchError(f"node 0 at {self._first_node} refused this host: {answer['refused']}")
        return HostConnection(reader, writer), str(answer.get("model", ""))

    async def _follow_commands(self, connection: HostConnection, model_label: str) -> None:
        """Start and stop shards as node 0 says. Raises HostConnectionLost, or LaunchError of shards that cannot
        start."""
        receiving = asyncio.ensure_future(connection.receive())
        try:
            while True:
                await asyncio.wait({receiving, *([self._run_task] if self._run_task else [])},
                                   return_when=asyncio.FIRST_COMPLETED)
                if self._run_task is not None and self._run_task.done():
                    await self._end_shards()
                if receiving.done():
                    message = receiving.result()
                    receiving = asyncio.ensure_future(connection.receive())
                    await self._apply_command(message, connection, model_label)
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])

    async def _apply_command(self, message: Message, connection: HostConnection, model_label: str) -> None:
        await self._end_shards()
        if "start" in message:
            self.idle.clear()
            self._run_task = asyncio.create_task(self._run_shards(connection, message["start"], model_label))
        elif "stop" in message:
            connection.send(make_end_report(message["stop"], "was stopped"))

    async def _run_shards(self, connection: HostConnection, start_name: str, model_label: str) -> None:
        """Run the shards of one start until one ends, and report that. Raises the error of one that cannot start."""
        self._display.show_start()
        for spec in self._shard_specs:
            complete = self._complete_spec(spec, connection, start_name, model_label)
            self._processes.append(await ChildProcess.start(complete, self._display, parent_fd=self._parent_fd))
        if await wait_until_all_ready(self._processes):
            self._display.stop()
            self._has_been_ready = True
            self._output.log(f"the shards of node {self._node.node_rank} are ready")
            connection.send({"of": start_name, "addresses": [process.ready_message["address"]
                                                             for process in self._processes]})
        dead = await wait_for_first_exit(self._processes)
        self._display.stop()
        cause = next((process for process in self._processes
                      if process.exit_task.done() and process.has_own_exit_cause), dead)
        error = cause.make_error()
        await terminate_all(self._processes, 0)
        connection.send(make_end_report(start_name, str(error), is_cause=cause.has_own_exit_cause,
                                        is_lasting=isinstance(error, ConfigurationError)))
        if cause.has_own_exit_cause and not self._has_been_ready:
            raise error
        self._output.warn(f"{error}; waiting for node 0")

    def _complete_spec(self, spec: ChildSpec, connection: HostConnection, start_name: str,
                       model_label: str) -> ChildSpec:
        """Return a shard that listens where node 0 reaches this host, and meets the others at node 0."""
        host = connection.local_host
        return replace(spec, settings=spec.settings | {
            "socket": format_address(host, 0), "host_address": host, "model_label": model_label,
            "meeting_point": f"{format_address(connection.remote_host, self._node.master_port)}/{start_name}"})

    async def _end_shards(self) -> None:
        """End the shards of a start, if there is one. Raises the error of one that could not start."""
        task, self._run_task = self._run_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await terminate_all(self._processes, 0)
        self._processes.clear()
        self._display.stop()
        self.idle.set()
        if task is not None and not task.cancelled():
            task.result()

    def kill_shards(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)


def make_end_report(start_name: str, reason: str, *, is_cause: bool = False, is_lasting: bool = False) -> Message:
    return {"of": start_name, "ended": reason, "is_cause": is_cause, "is_lasting": is_lasting}


async def serve_member(group: GroupPlan, facts: Mapping[str, Any], shard_specs: Sequence[ChildSpec], *,
                       seconds_to_finish: float, output: ConsoleOutput) -> None:
    """Take part until a signal asks to stop, and then for `seconds_to_finish` or until node 0 ends the shards: requests
    need all of them. A second signal ends the shards at once. Raises LaunchError."""
    parent_fd, write_descriptor = os.pipe()
    member = HostMember(group, facts, shard_specs, parent_fd, output=output)
    run_task = asyncio.create_task(member.run())
    stop_signals = asyncio.Semaphore(0)
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop_signals.release)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, output.warn, "only node 0 writes recordings")
    first_signal = asyncio.create_task(stop_signals.acquire())
    await asyncio.wait([run_task, first_signal], return_when=asyncio.FIRST_COMPLETED)
    if not run_task.done():
        if not member.idle.is_set():
            output.log(f"stopping: node 0 may go on for {seconds_to_finish:g} seconds; the same signal again ends the "
                       "shards")
        with suppress(TimeoutError):
            await asyncio.wait_for(wait_for_any(member.idle.wait(), stop_signals.acquire()), seconds_to_finish)
        run_task.cancel()
    first_signal.cancel()
    await asyncio.wait([run_task], timeout=EXIT_MARGIN_SECONDS)
    member.kill_shards()
    os.close(parent_fd)
    os.close(write_descriptor)
    if run_task.done() and not run_task.cancelled():
        run_task.result()
    output.log("stopped")


async def wait_for_any(*coroutines: Any) -> None:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
