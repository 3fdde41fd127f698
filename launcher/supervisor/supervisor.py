"""Supervisor of one server's child processes: starts them, restarts them, and stops them in order.

A child reports on a pipe that it is ready. Another pipe, to which no data is written, closes when the launcher ends, so
that the child ends too.
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
from typing import Any

from launcher.output import PLAIN, Voice
from launcher.supervisor.plan import Child, Plan
from launcher.supervisor.restart_policy import MOST, PAUSES, WINDOW, Deaths
from launcher.supervisor.startup_display import Display

MARGIN = 5.0  # seconds for a child to exit, in addition to those for finishing its work
SIGNALS = (signal.SIGINT, signal.SIGTERM)
BROKEN = "broken"
STDERR = 2  # children write to stderr only, also what they print on stdout


class Failed(Exception):
    """The server cannot start; the message is the one line that the user reads."""

    code = 1  # the launcher's exit code


class Misconfigured(Failed):
    """The server cannot start until a setting, the model or the machine changes: a restart does not help."""

    code = 2


class GaveUp(Failed):
    """The server cannot continue, since its children died too often."""

    code = 70


def ignore(_: str) -> None:
    """Do nothing."""


class Process:
    """A child process that was started."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, lines: asyncio.StreamReader,
                 display: Display, on_broken: Callable[[str], None]) -> None:
        self.name = name
        self.lines = lines
        self.told: dict[str, Any] = {}  # the JSON of its ready message
        self._display = display
        self._on_broken = on_broken
        self.ended = asyncio.create_task(process.wait())
        self.ready = asyncio.create_task(self._hear())  # False if the child ended before it was ready
        self._process = process
        self._cause = ""  # why it cannot start, as reported by the child itself

    @classmethod
    async def start(cls, child: Child, display: Display, on_broken: Callable[[str], None] = ignore,
                    **inherited: int) -> "Process":
        """Start a child.

        `on_broken` is called with the reason if the child reports that other processes do not work. `inherited` are
        file descriptors passed to the child, in addition to its pipe for messages.
        """
        lines, write = await pipe()
        try:
            # A process group of its own, so that Ctrl-C reaches the child only through the launcher, in order.
            process = await asyncio.create_subprocess_exec(
                *child.command(ready_fd=write, **inherited), pass_fds=(write, *inherited.values()),
                stdin=subprocess.DEVNULL, stdout=STDERR, process_group=0,
                env=os.environ | child.environment)
        finally:
            os.close(write)
        return cls(child.name, process, lines, display, on_broken)

    async def _hear(self) -> bool:
        async for line in self.lines:
            word, _, rest = line.decode().strip().partition(" ")
            if word == "ready":
                self.told = json.loads(rest.partition(" ")[2] or "{}")
                return True
            if word == "progress":
                phase, done, total = rest.split()
                self._display.hear(self.name, phase, int(done), int(total))
            elif word == BROKEN:
                self._on_broken(rest)
            else:
                self._cause = rest
        await self.ended
        return False

    async def last_line(self) -> None:
        """Read the messages of a child that is ready until it closes its pipe."""
        async for line in self.lines:
            word, _, rest = line.decode().strip().partition(" ")
            if word == BROKEN:
                self._on_broken(rest)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def failure(self) -> Failed:
        """Return the error of a child that ended before it was ready.

        It is Misconfigured if the child reported a cause and its exit code means that a restart does not help.
        """
        is_lasting = self._cause and self.ended.result() == Misconfigured.code
        return (Misconfigured if is_lasting else Failed)(self.how())

    def how(self) -> str:
        """Return a description of how the child ended."""
        code = self.ended.result()
        if self._cause:
            return f"{self.name}: {self._cause}"
        return f"{self.name} was ended by signal {-code}" if code < 0 else f"{self.name} ended with exit code {code}"


async def pipe() -> tuple[asyncio.StreamReader, int]:
    """Return the two ends of a pipe; the reading end closes by itself once all writing ends are closed."""
    read, write = os.pipe()
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb", 0))
    return lines, write


async def all_ready(processes: Sequence[Process]) -> bool:
    """Wait until all are ready. Return False as soon as one has ended instead: the others may wait for it."""
    for ready in asyncio.as_completed([process.ready for process in processes]):
        if not await ready:
            return False
    return True


async def first_end(processes: Sequence[Process]) -> Process:
    await asyncio.wait([process.ended for process in processes], return_when=asyncio.FIRST_COMPLETED)
    return next(process for process in processes if process.ended.done())


async def end_all(processes: Sequence[Process], seconds: float) -> None:
    """Terminate the processes, and kill those that have not ended after `seconds`."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, None)):
        for process in processes:
            process.send(number)
        if processes:
            await asyncio.wait([process.ended for process in processes], timeout=patience)
    for process in processes:
        await process.ready
        await process.lines.read()


class Server:
    """Running processes of a plan. All shards are restarted together; the router is restarted alone."""

    def __init__(self, plan: Plan, listener: socket.socket, parent_fd: int, on_ready: Callable[[dict[str, Any]], None],
                 *, display: Display, voice: Voice = PLAIN, pauses: Sequence[float] = PAUSES) -> None:
        """Prepare a server; `on_ready` is called once, with the router's ready message."""
        self._plan = plan
        self._listener = listener
        self._parent_fd = parent_fd
        self._on_ready = on_ready
        self._display = display
        self._voice = voice
        # Deaths of shards do not count for the router, whose first restart has no pause: it costs little.
        self._deaths_of_shards, self._deaths_of_router = Deaths(pauses), Deaths((0.0, *pauses))
        self._shards: list[Process] = []
        self._router: list[Process] = []  # one, or none yet
        self._loaded = asyncio.Event()  # the shards are ready
        self._serving = False

    async def keep(self) -> None:
        """Start all processes and restart those that die; ends only when cancelled, or with Failed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_shards())
                tasks.create_task(self._keep_router())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _keep_shards(self) -> None:
        for generation in itertools.count(1):
            for child in self._plan.generation(generation):
                self._shards.append(await Process.start(child, self._display, parent_fd=self._parent_fd))
            if await all_ready(self._shards):
                self._loaded.set()
                if self._serving:  # the router is running already, so no warm-up of it is shown
                    self._display.end()
                else:
                    self._display.hear("router", "warm-up", 0, 0)
                self._serve()
            dead = await first_end(self._shards)
            self._loaded.clear()
            await end_all(self._shards, 0)
            self._shards.clear()
            await self._mourn(dead, "all shards", self._deaths_of_shards)

    async def _keep_router(self) -> None:
        """Run the router and restart it. It starts together with the shards, to report their progress to clients."""
        while True:
            router = await Process.start(
                self._plan.router, self._display, self._kill_shards, parent_fd=self._parent_fd,
                listen_fd=self._listener.fileno())
            self._router = [router]
            if await all_ready(self._router):
                self._serve()
            await router.last_line()
            await self._mourn(await first_end(self._router), "the router", self._deaths_of_router)

    def _serve(self) -> None:
        """End the progress display once all processes are ready, and call `on_ready` the first time."""
        routers = self._ready_routers()
        if not (self._loaded.is_set() and routers):
            return
        self._display.end()
        if not self._serving:
            self._serving = True
            self._on_ready(routers[0].told)

    def _kill_shards(self, why: str) -> None:
        """Kill shards that are alive but do not work, as reported by the router; `_keep_shards` restarts them."""
        if not self._loaded.is_set():
            return  # the shards are being restarted already: the report is about the previous ones
        self._voice.warn(f"the shards do not work: {why}")
        for shard in self._shards:
            shard.send(signal.SIGKILL)

    async def _mourn(self, dead: Process, replaced: str, deaths: Deaths) -> None:
        """Wait before a restart. Raises Failed if nothing was served yet, GaveUp after too many deaths."""
        self._display.end()
        if not self._serving:
            raise dead.failure()
        pause = deaths.pause(time.monotonic())
        if pause is None:
            raise GaveUp(f"{dead.how()}; that was death number {MOST} within {WINDOW / 60:.0f} minutes, giving up")
        self._voice.warn(f"{dead.how()}; starting {replaced} again")
        await asyncio.sleep(pause)

    async def stop(self, seconds: float) -> None:
        """Stop the router, which has `seconds` to finish its requests, and after it the shards."""
        self._display.end()
        self._listener.close()
        await end_all(self._router, seconds + MARGIN)
        await end_all(self._shards, MARGIN)

    def record(self) -> None:
        """Signal the router to write a recording of its last minutes.

        A router that is still starting has no handler for the signal yet and would die of it.
        """
        for router in self._ready_routers():
            router.send(signal.SIGUSR1)

    def _ready_routers(self) -> list[Process]:
        return [router for router in self._router if router.ready.done() and router.ready.result()]

    def kill(self) -> None:
        for process in self._router + self._shards:
            process.send(signal.SIGKILL)


def bind(hostname: str, port: int) -> socket.socket:
    """Return a bound socket: it refuses clients until a router listens on it, and holds them during a restart."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0]
        return bound(socket.socket(family, kind), address)
    except OSError as error:
        failed = Misconfigured if isinstance(error, PermissionError) else Failed  # a used port may become free
        raise failed(f"cannot listen on {hostname}:{port} ({error.strerror}); choose another port with --port or "
                     "another address with --hostname") from error


def bound(listener: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


async def serve(plan: Plan, listener: socket.socket, on_ready: Callable[[dict[str, Any]], None],
                seconds_to_finish: float, voice: Voice = PLAIN) -> None:
    """Serve until a signal asks to stop; a second signal ends everything at once. Raises Failed."""
    parent_fd, held_open = os.pipe()
    server = Server(plan, listener, parent_fd, on_ready, display=Display(voice.screen()), voice=voice)
    keep = asyncio.create_task(server.keep())
    stop_on_signals(keep, server)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, server.record)
    await asyncio.wait([keep])
    if not keep.cancelled():
        os.close(held_open)  # requests cannot be finished without these processes: the router fails them at once
        await server.stop(0.0)
        os.close(parent_fd)
        keep.result()
    await server.stop(seconds_to_finish)
    os.close(parent_fd)
    os.close(held_open)


def stop_on_signals(keep: asyncio.Task[None], server: Server) -> None:
    def stop() -> None:
        if keep.cancelling() or keep.done():
            server.kill()
        keep.cancel()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop)
