"""Supervisor of one server's child processes: starts them, restarts them, and stops them in order.

A child reports on a pipe that it is ready. Another pipe, to which no data is written, closes when the launcher ends, so
that the child ends too. The shards of another host count as one child (launcher/hosts/coordinator.py).
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from launcher.console_output import PLAIN_OUTPUT, ConsoleOutput
from launcher.supervisor.launch_plan import ChildSpec, LaunchPlan
from launcher.supervisor.restart_policy import MAX_DEATHS, RESTART_PAUSES_SECONDS, WINDOW_SECONDS, RestartPolicy
from launcher.supervisor.startup_display import StartupDisplay

EXIT_MARGIN_SECONDS = 5.0  # seconds for a child to exit, in addition to those for finishing its work
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
BROKEN_MESSAGE, HEARTBEAT_MESSAGE, EXCUSED_MESSAGE = "broken", "alive", "excused"
SILENCE_CHECK_SECONDS = 1.0
MAX_STOPPED_SECONDS, MAX_SILENT_SECONDS = 12.0, 60.0  # without a heartbeat
CAUSE_SECONDS = 1.0  # within which another host reports that it was the cause of a shard's death here
STDERR_DESCRIPTOR = 2  # children write to stderr only, also what they print on stdout


class LaunchError(Exception):
    """The server cannot start; the message is the one line that the user reads."""

    exit_code = 1  # the launcher's exit code


class ConfigurationError(LaunchError):
    """The server cannot start until a setting, the model or the machine is changed; starting it again does not help."""

    exit_code = 2


class TooManyDeathsError(LaunchError):
    """The server cannot continue, since its children died too often."""

    exit_code = 70


def ignore_failure_report(_: str) -> None:
    """Do nothing."""


class ShardMember(Protocol):
    """One of those that run the shards together: a child process, or the shards of another host."""

    @property
    def ready_task(self) -> "asyncio.Future[bool]":
        """Whether it is ready; False if it ended before it was."""

    @property
    def exit_task(self) -> "asyncio.Future[int]":
        """The exit code."""

    @property
    def has_own_exit_cause(self) -> bool:
        """Whether it ended for a reason of its own, and not since another one did."""

    @property
    def will_rejoin(self) -> bool:
        """Whether it is awaited again, even before all were ready once."""

    @property
    def is_remote(self) -> bool:
        """Whether it is on another host, which reports its end later than a shard here may notice it."""

    def send_signal(self, signal_number: signal.Signals) -> None: ...
    def make_error(self) -> LaunchError: ...
    def describe_exit(self) -> str: ...
    async def wait_until_closed(self) -> None: ...


class RemoteHosts:
    """Other hosts that run some of the shards. There are none: a `HostCoordinator` has some."""

    async def start_shards(self, start_number: int) -> Sequence[ShardMember]:  # noqa: ARG002 - that of a coordinator
        """Wait until all hosts are there, and start their shards. Raises LaunchError."""
        return ()

    async def close(self) -> None:
        """Let go the hosts; their shards have ended."""


class ChildProcess:
    """A child process that was started."""

    will_rejoin = is_remote = False

    def __init__(self, name: str, process: asyncio.subprocess.Process, messages: asyncio.StreamReader,
                 display: StartupDisplay, on_broken: Callable[[str], None]) -> None:
        self.name = name
        self.messages = messages
        self.ready_message: dict[str, Any] = {}  # the JSON of its ready message
        self._display = display
        self._on_broken = on_broken
        self.exit_task = asyncio.create_task(process.wait())
        self.ready_task = asyncio.create_task(self._read_until_ready())  # False if the child ended before it was ready
        self._subprocess = process
        self._reported_cause = ""  # why it cannot start, as reported by the child itself

    @classmethod
    async def start(cls, spec: ChildSpec, display: StartupDisplay,
                    on_broken: Callable[[str], None] = ignore_failure_report, **descriptors: int) -> "ChildProcess":
        """Start a child.

        `on_broken` is called with the reason if the child reports that other processes do not work. `descriptors` are
        file descriptors passed to the child, in addition to its pipe for messages.
        """
        messages, write_descriptor = await open_message_pipe()
        try:
            # A process group of its own, so that Ctrl-C reaches the child only through the launcher, in order.
            process = await asyncio.create_subprocess_exec(
                *spec.make_command_line(ready_fd=write_descriptor, **descriptors),
                pass_fds=(write_descriptor, *descriptors.values()), stdin=subprocess.DEVNULL, stdout=STDERR_DESCRIPTOR,
                process_group=0, env=os.environ | spec.extra_environment)
        finally:
            os.close(write_descriptor)
        return cls(spec.name, process, messages, display, on_broken)

    async def _read_until_ready(self) -> bool:
        async for line in self.messages:
            word, _, rest = line.decode().strip().partition(" ")
            if word == "ready":
                self.ready_message = json.loads(rest.partition(" ")[2] or "{}")
                return True
            if word == "progress":
                phase, done, total = rest.split()
                self._display.update_progress(self.name, phase, int(done), int(total))
            elif word == BROKEN_MESSAGE:
                self._on_broken(rest)
            else:
                self._reported_cause = rest
        await self.exit_task
        return False

    async def monitor_until_closed(self, warn: Callable[[str], None], on_deaths_excused: Callable[[int], None]) -> None:
        """Read the messages of a child that is ready until it closes its pipe. A child that has sent a heartbeat and
        then sends no other is killed, after a call of `warn`. `on_deaths_excused` is called with the number of deaths
        of other processes whose cause the child has found."""
        loop, has_heartbeat, silent_seconds = asyncio.get_running_loop(), False, 0.0
        line = asyncio.ensure_future(self.messages.readline())
        try:
            while True:
                started_at = loop.time()
                if not (await asyncio.wait([line], timeout=SILENCE_CHECK_SECONDS))[0]:
                    # This process may have stood still itself: then it has not listened for longer.
                    silent_seconds += min(loop.time() - started_at, 2 * SILENCE_CHECK_SECONDS)
                    if has_heartbeat and self._is_dead(silent_seconds):
                        warn(f"{self.name} does not respond for {silent_seconds:.0f} seconds")
                        self.send_signal(signal.SIGKILL)
                        silent_seconds = 0.0
                    continue
                if not line.result():
                    return
                word, _, rest = line.result().decode().strip().partition(" ")
                line = asyncio.ensure_future(self.messages.readline())
                has_heartbeat, silent_seconds = has_heartbeat or word == HEARTBEAT_MESSAGE, 0.0
                if word == BROKEN_MESSAGE:
                    self._on_broken(rest)
                elif word == EXCUSED_MESSAGE:
                    on_deaths_excused(int(rest))
        finally:
            line.cancel()
            await asyncio.wait([line])

    def _is_dead(self, silent_seconds: float) -> bool:
        """Return whether a child without a heartbeat for so long is to be replaced. One that is stopped does not wait
        for anything that may come."""
        return (silent_seconds >= MAX_SILENT_SECONDS
                or (silent_seconds >= MAX_STOPPED_SECONDS and self.is_stopped_by_signal()))

    @property
    def has_own_exit_cause(self) -> bool:
        """Whether the child itself reported a cause."""
        return bool(self._reported_cause)

    async def wait_until_closed(self) -> None:
        """Wait until the child, which has ended, and its own children have closed its pipe."""
        await self.ready_task
        await self.messages.read()

    def is_stopped_by_signal(self) -> bool:
        """Return whether the process is stopped, by SIGSTOP or a terminal."""
        try:
            return Path(f"/proc/{self._subprocess.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Send a signal, unless the child has ended.

        Not `send_signal` of the subprocess: it polls, which takes the exit code away from asyncio if the child ended
        just now. asyncio then reports 255, and logs that it does.
        """
        if not self.exit_task.done():
            with suppress(ProcessLookupError):
                os.kill(self._subprocess.pid, signal_number)

    def make_error(self) -> LaunchError:
        """Return the error of a child that ended before it was ready.

        It is ConfigurationError if the child reported a cause and its exit code means that a restart does not help.
        """
        is_lasting = self._reported_cause and self.exit_task.result() == ConfigurationError.exit_code
        return (ConfigurationError if is_lasting else LaunchError)(self.describe_exit())

    def describe_exit(self) -> str:
        """Return a description of how the child ended."""
        code = self.exit_task.result()
        if self._reported_cause:
            return f"{self.name}: {self._reported_cause}"
        return f"{self.name} was ended by signal {-code}" if code < 0 else f"{self.name} ended with exit code {code}"


async def open_message_pipe() -> tuple[asyncio.StreamReader, int]:
    """Return the two ends of a pipe; the reading end closes by itself once all writing ends are closed."""
    read, write = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb", 0))
    except BaseException:  # including that the server is stopped just now
        os.close(write)
        raise
    return reader, write


async def wait_until_all_ready(processes: Sequence[ShardMember]) -> bool:
    """Wait until all are ready. Return False as soon as one has ended instead: the others may wait for it."""
    for ready in asyncio.as_completed([process.ready_task for process in processes]):
        if not await ready:
            return False
    return True


async def wait_for_first_exit(processes: Sequence[ShardMember]) -> ShardMember:
    await asyncio.wait([process.exit_task for process in processes], return_when=asyncio.FIRST_COMPLETED)
    return next(process for process in processes if process.exit_task.done())


async def wait_for_exit_cause(processes: Sequence[ShardMember]) -> ShardMember:
    """Wait for the first exit and return its cause: where another host takes part, a shard here may notice the end of
    one there before that host reports it."""
    first = await wait_for_first_exit(processes)
    if first.has_own_exit_cause or not any(process.is_remote for process in processes):
        return first
    await asyncio.wait([process.exit_task for process in processes], timeout=CAUSE_SECONDS)
    return next((process for process in processes if process.exit_task.done() and process.has_own_exit_cause), first)


async def terminate_all(processes: Sequence[ShardMember], timeout_seconds: float) -> None:
    """Terminate the processes, and kill those that have not ended after `timeout_seconds`."""
    for signal_number, timeout in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, None)):
        for process in processes:
            process.send_signal(signal_number)
        if processes:
            await asyncio.wait([process.exit_task for process in processes], timeout=timeout)
    for process in processes:
        await process.wait_until_closed()


class Supervisor:
    """Running processes of a plan. All shards are restarted together; the router is restarted alone."""

    def __init__(self, plan: LaunchPlan, listener: socket.socket, parent_fd: int,
                 on_ready: Callable[[dict[str, Any]], None], *, display: StartupDisplay,
                 output: ConsoleOutput = PLAIN_OUTPUT,
                 pauses: Sequence[float] = RESTART_PAUSES_SECONDS, remote_hosts: RemoteHosts | None = None) -> None:
        """Prepare a server; `on_ready` is called once, with the router's ready message."""
        self._plan = plan
        self._listener = listener
        self._parent_fd = parent_fd
        self._on_ready = on_ready
        self._display = display
        self._output = output
        self._remote_hosts = remote_hosts or RemoteHosts()
        # The first restart has no pause: most accidents are single. Deaths of shards do not count for the router.
        self._shard_restart_policy, self._router_restart_policy = (RestartPolicy((0.0, *pauses)) for _ in range(2))
        self._shard_processes: list[ShardMember] = []
        self._router_processes: list[ChildProcess] = []  # one, or none yet
        self._shards_ready = asyncio.Event()  # the shards are ready
        self._has_been_ready = False

    async def run_processes(self) -> None:
        """Start all processes and restart those that die; ends only when cancelled, or with LaunchError."""
        self._display.show_start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run_shards())
                tasks.create_task(self._run_router())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _run_shards(self) -> None:
        for generation in itertools.count(1):
            self._shard_processes += await self._remote_hosts.start_shards(generation)
            for child in self._plan.make_shard_specs(generation):
                self._shard_processes.append(await ChildProcess.start(child, self._display, parent_fd=self._parent_fd))
            if await wait_until_all_ready(self._shard_processes):
                self._shards_ready.set()
                if self._has_been_ready:  # the router is running already, so no warm-up of it is shown
                    self._display.stop()
                else:
                    self._display.update_progress("router", "warm-up", 0, 0)
                self._report_if_all_ready()
            dead_process = await wait_for_exit_cause(self._shard_processes)
            self._shards_ready.clear()
            await terminate_all(self._shard_processes, 0)
            self._shard_processes.clear()
            await self._wait_before_restart(dead_process, "all shards", self._shard_restart_policy)

    async def _run_router(self) -> None:
        """Run the router and restart it. It starts together with the shards, to report their progress to clients."""
        while True:
            router = await ChildProcess.start(
                self._plan.router_spec, self._display, self._kill_shards, parent_fd=self._parent_fd,
                listen_fd=self._listener.fileno())
            self._router_processes = [router]
            if await wait_until_all_ready(self._router_processes):
                self._report_if_all_ready()
            await router.monitor_until_closed(self._output.warn, self._shard_restart_policy.forget_recent_deaths)
            await self._wait_before_restart(await wait_for_first_exit(self._router_processes), "the router",
                                            self._router_restart_policy)

    def _report_if_all_ready(self) -> None:
        """End the progress display once all processes are ready, and call `on_ready` the first time."""
        routers = self._ready_routers()
        if not (self._shards_ready.is_set() and routers):
            return
        self._display.stop()
        if not self._has_been_ready:
            self._has_been_ready = True
            self._on_ready(routers[0].ready_message)

    def _kill_shards(self, reason: str) -> None:
        """Kill shards that are alive but do not work, as reported by the router; `_run_shards` restarts them."""
        if not self._shards_ready.is_set():
            return  # the shards are being restarted already: the report is about the previous ones
        self._output.warn(f"the shards do not work: {reason}")
        for shard in self._shard_processes:
            shard.send_signal(signal.SIGKILL)

    async def _wait_before_restart(self, dead_process: ShardMember, restarted_name: str,
                                   restart_policy: RestartPolicy) -> None:
        """Wait before a restart. Raises LaunchError if nothing was served yet and TooManyDeathsError after many deaths,
        unless the dead one comes again."""
        self._display.stop()
        if not (self._has_been_ready or dead_process.will_rejoin):
            raise dead_process.make_error()
        now = time.monotonic()
        pause = (restart_policy.record_loss_and_choose_pause(now) if dead_process.will_rejoin
                 else restart_policy.record_death_and_choose_pause(now))
        if pause is None:
            raise TooManyDeathsError(f"{dead_process.describe_exit()}; that was death number {MAX_DEATHS} within "
                                     f"{WINDOW_SECONDS / 60:.0f} minutes, giving up")
        self._output.warn(f"{dead_process.describe_exit()}; starting {restarted_name} again")
        await asyncio.sleep(pause)

    async def stop_processes(self, seconds_to_finish: float) -> None:
        """Stop the router, which has `seconds_to_finish` to finish its requests, and after it the shards."""
        self._display.stop()
        self._listener.close()
        await terminate_all(self._router_processes, seconds_to_finish + EXIT_MARGIN_SECONDS)
        await terminate_all(self._shard_processes, EXIT_MARGIN_SECONDS)
        await self._remote_hosts.close()

    def ask_router_for_recording(self) -> None:
        """Signal the router to write a recording of its last minutes.

        A router that is still starting has no handler for the signal yet and would die of it.
        """
        for router in self._ready_routers():
            router.send_signal(signal.SIGUSR1)

    def _ready_routers(self) -> list[ChildProcess]:
        return [router for router in self._router_processes if router.ready_task.done() and router.ready_task.result()]

    def end_requests(self) -> None:
        """Signal a router that is stopping to end its unfinished requests now.

        Not with the signal that stopped it: of two equal ones that a process has not handled yet, it gets one.
        """
        for router in self._router_processes:
            router.send_signal(signal.SIGINT)

    def kill_all_processes(self) -> None:
        for process in (*self._router_processes, *self._shard_processes):
            process.send_signal(signal.SIGKILL)


def bind_listener(hostname: str, port: int) -> socket.socket:
    """Return a bound socket: it refuses clients until a router listens on it, and holds them during a restart."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0]
        return bind_socket(socket.socket(family, kind), address)
    except OSError as error:
        # a used port may become free
        failed = ConfigurationError if isinstance(error, PermissionError) else LaunchError
        raise failed(f"cannot listen on {hostname}:{port} ({error.strerror}); choose another port with --port or "
                     "another address with --hostname") from error


def bind_socket(listener: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


async def serve(plan: LaunchPlan, listener: socket.socket, on_ready: Callable[[dict[str, Any]], None],
                seconds_to_finish: float, output: ConsoleOutput = PLAIN_OUTPUT, *, logs_stop: bool = False,
                remote_hosts: RemoteHosts | None = None) -> None:
    """Serve until a signal asks to stop; a second signal ends the requests. Raises LaunchError.

    `logs_stop`: whether both signals and the end are logged."""
    parent_fd, write_descriptor = os.pipe()
    supervisor = Supervisor(plan, listener, parent_fd, on_ready, display=StartupDisplay(output.make_progress_stream()),
                            output=output, remote_hosts=remote_hosts)
    run_task = asyncio.create_task(supervisor.run_processes())

    def log_stop(text: str) -> None:
        if logs_stop:
            output.log(text)

    stop_on_signals(run_task, supervisor, on_stop=lambda: log_stop(
        f"stopping: running requests may finish within {seconds_to_finish:g} seconds; the same signal again ends them"),
        on_end_requested=lambda: log_stop(
            "the second signal ends requests that still run, with an error; a third kills all processes"))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, supervisor.ask_router_for_recording)
    await asyncio.wait([run_task])
    if not run_task.cancelled():
        os.close(write_descriptor)  # requests cannot be finished without these processes: the router fails them at once
        await supervisor.stop_processes(0.0)
        os.close(parent_fd)
        ignore_signals()
        run_task.result()
    await supervisor.stop_processes(seconds_to_finish)
    os.close(parent_fd)
    os.close(write_descriptor)
    log_stop("stopped")
    ignore_signals()


def stop_on_signals(run_task: asyncio.Task[None], supervisor: Supervisor, *, on_stop: Callable[[], None],
                    on_end_requested: Callable[[], None]) -> None:
    """Let a first signal stop the server, after a call of `on_stop`, a second one end its requests, after one of
    `on_end_requested`, and a third one kill all processes."""
    loop, num_signals = asyncio.get_running_loop(), 0

    def handle_stop_signal() -> None:
        nonlocal num_signals
        num_signals += 1
        if run_task.done() and not run_task.cancelled():
            supervisor.kill_all_processes()
        elif num_signals == 1:
            on_stop()
            run_task.cancel()
        elif num_signals == 2:
            on_end_requested()
            supervisor.end_requests()
            loop.call_later(EXIT_MARGIN_SECONDS, supervisor.kill_all_processes)
        else:
            supervisor.kill_all_processes()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, handle_stop_signal)


def ignore_signals() -> None:
    """Ignore further signals: all children have ended, and a late signal must not replace the exit code."""
    signals = (*STOP_SIGNALS, signal.SIGUSR1)
    # Removing a handler restores the signal's default, which would end the process before the next line is reached.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for number in signals:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
