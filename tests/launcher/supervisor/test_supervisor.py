"""Tests of starting, replacing and stopping child processes, with one-line programs as children."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.supervisor import supervisor
from launcher.supervisor.launch_plan import ChildSpec, LaunchPlan
from launcher.supervisor.restart_policy import MAX_DEATHS
from launcher.supervisor.startup_display import StartupDisplay
from launcher.supervisor.supervisor import (
    ChildProcess,
    ConfigurationError,
    LaunchError,
    RemoteHosts,
    Supervisor,
    TooManyDeathsError,
    bind_listener,
    terminate_all,
    wait_for_exit_cause,
)

PARSE_ARGUMENTS = "import json, os, signal, sys; told = json.loads(sys.argv[1]); "
RECORD_START = PARSE_ARGUMENTS + "open(told['births'], 'a').write(told['name'] + '\\n'); "
REPORT_READY = "os.write(told['ready_fd'], b'ready\\n'); "
WAIT_FOR_PARENT = "os.read(told['parent_fd'], 1)"
SIGTERM_IGNORING_PROGRAM = (PARSE_ARGUMENTS + "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + REPORT_READY
                            + WAIT_FOR_PARENT)
LASTING_PROGRAM = RECORD_START + REPORT_READY + WAIT_FOR_PARENT
MEETING_POINT_PROGRAM = (PARSE_ARGUMENTS + "open(told['births'], 'a').write(told['meeting_point'] + '\\n'); "
                         + REPORT_READY + WAIT_FOR_PARENT)


class ChildStartLog:
    """The names of the children in the order in which they were started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def read_next(self, count: int) -> set[str]:
        loop, names = asyncio.get_running_loop(), []
        while len(names) < count:
            readable = loop.create_future()
            loop.add_reader(self._descriptor, readable.set_result, None)
            await readable
            loop.remove_reader(self._descriptor)
            names += os.read(self._descriptor, 4096).decode().split("\n")[:-1]
        return set(names)

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def child_starts(tmp_path: Path) -> Iterator[ChildStartLog]:
    start_log = ChildStartLog(tmp_path / "births")
    yield start_log
    start_log.close()


def make_child(name: str, program: str, child_starts: ChildStartLog | None = None) -> ChildSpec:
    settings = {"name": name, "births": str(child_starts.path) if child_starts else ""}
    return ChildSpec(name, (sys.executable, "-I", "-S", "-c", program), settings)


@asynccontextmanager
async def run_process(program: str, display: StartupDisplay | None = None) -> AsyncIterator[ChildProcess]:
    parent_fd, held_open = os.pipe()
    process = await ChildProcess.start(make_child("router", program), display or StartupDisplay(io.StringIO()),
                                       parent_fd=parent_fd)
    yield process
    await terminate_all([process], 0)
    os.close(parent_fd)
    os.close(held_open)


class ServerHarness:
    """A server of two shards and a router, and the task that runs it."""

    def __init__(self, child_starts: ChildStartLog, shard: str, router: str, pauses: tuple[float, ...],
                 parent_fd: int, *, remote_hosts: RemoteHosts | None = None) -> None:
        self.ready = asyncio.Event()
        plan = LaunchPlan((make_child("s0", shard, child_starts), make_child("s1", shard, child_starts)),
                          make_child("router", router, child_starts), "/meeting-")
        self.ready_infos: list[dict[str, Any]] = []
        self.display = StartupDisplay(io.StringIO())
        self.server = Supervisor(plan, bind_listener("127.0.0.1", 0), parent_fd, self._on_ready, display=self.display,
                                 pauses=pauses, remote_hosts=remote_hosts)
        self.keep_task = asyncio.create_task(self.server.run_processes())

    def _on_ready(self, ready_info: dict[str, Any]) -> None:
        self.ready_infos.append(ready_info)
        self.ready.set()

    async def stop(self) -> None:
        self.keep_task.cancel()
        await asyncio.wait([self.keep_task])
        await self.server.stop_processes(5.0)


@pytest.fixture
def run_with_server(child_starts: ChildStartLog) -> Callable[..., None]:
    """Return a function that runs a scenario with a server and stops the server at the end."""
    def run(scenario: Callable[[ServerHarness], Awaitable[None]], shard: str = LASTING_PROGRAM,
            router: str = LASTING_PROGRAM, pauses: tuple[float, ...] = (0, 0),
            remote_hosts: RemoteHosts | None = None) -> None:
        async def run_scenario() -> None:
            parent_fd, held_open = os.pipe()
            server = ServerHarness(child_starts, shard, router, pauses, parent_fd, remote_hosts=remote_hosts)
            try:
                await scenario(server)
            finally:
                await server.stop()
                os.close(parent_fd)
                os.close(held_open)
        asyncio.run(run_scenario())
    return run


# -- one child


HEARTBEAT = "os.write(told['ready_fd'], b'alive\\n')\n"
STOP_ITSELF = "import signal; os.kill(os.getpid(), signal.SIGSTOP)\n"


@pytest.mark.parametrize(("program", "stopped_seconds", "silent_seconds", "is_killed"), [
    (HEARTBEAT + STOP_ITSELF, 0.1, 60.0, True), (HEARTBEAT + WAIT_FOR_PARENT, 0.1, 60.0, False),
    (HEARTBEAT + WAIT_FOR_PARENT, 60.0, 0.1, True), (WAIT_FOR_PARENT, 0.1, 0.1, False)],
    ids=["stopped", "silent for a short time", "silent for long", "without heartbeats"])
def test_child_without_heartbeat_is_killed(monkeypatch: pytest.MonkeyPatch, program: str, stopped_seconds: float,
                                           silent_seconds: float, is_killed: bool) -> None:
    monkeypatch.setattr(supervisor, "SILENCE_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "MAX_STOPPED_SECONDS", stopped_seconds)
    monkeypatch.setattr(supervisor, "MAX_SILENT_SECONDS", silent_seconds)
    warnings: list[str] = []

    async def scenario() -> None:
        async with run_process(PARSE_ARGUMENTS + REPORT_READY + program) as process:
            assert await process.ready_task
            reading = asyncio.create_task(process.monitor_until_closed(warnings.append, lambda _: None))
            await asyncio.wait([reading], timeout=20.0 if is_killed else 0.5)
            assert reading.done() == is_killed
            reading.cancel()
            await asyncio.wait([reading])
    asyncio.run(scenario())
    assert [warning.partition(" for ")[0] for warning in warnings] == ["router does not respond"] * is_killed


def test_child_reports_when_it_is_ready() -> None:
    async def scenario() -> None:
        async with run_process(PARSE_ARGUMENTS + REPORT_READY + WAIT_FOR_PARENT) as process:
            assert await process.ready_task
    asyncio.run(scenario())


@pytest.mark.parametrize(("program", "description"), [
    ("raise SystemExit(3)", "router ended with exit code 3"),
    ("import os; os.kill(os.getpid(), 9)", "router was ended by signal 9"),
    (PARSE_ARGUMENTS + "os.write(told['ready_fd'], b'failed no more room\\n')", "router: no more room"),
])
def test_early_exit_of_a_child_is_described(program: str, description: str) -> None:
    async def scenario() -> None:
        async with run_process(program) as process:
            assert not await process.ready_task
            assert process.describe_exit() == description
    asyncio.run(scenario())


@pytest.mark.parametrize("num_steps", range(6))
def test_start_that_is_cancelled_leaves_no_descriptor(num_steps: int) -> None:
    """The check after each test finds a descriptor that is left."""
    async def scenario() -> None:
        parent_fd, held_open = os.pipe()
        start = asyncio.create_task(ChildProcess.start(
            make_child("router", WAIT_FOR_PARENT), StartupDisplay(io.StringIO()), parent_fd=parent_fd))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait([start])
        if not start.cancelled():
            await terminate_all([start.result()], 0)
        os.close(parent_fd)
        os.close(held_open)
    asyncio.run(scenario())


def test_child_progress_is_shown_and_its_ready_info_kept() -> None:
    lines = r"""progress load 1 2\nprogress check 0 0\nready 80 {"dtype": "x"}\n"""
    program = PARSE_ARGUMENTS + f"os.write(told['ready_fd'], b'{lines}'); "
    updates: list[tuple[str, str, int, int]] = []

    class RecordingDisplay(StartupDisplay):
        def update_progress(self, *progress: Any) -> None:
            updates.append(progress)

    async def scenario() -> None:
        async with run_process(program + WAIT_FOR_PARENT, RecordingDisplay(io.StringIO())) as process:
            assert await process.ready_task
            assert process.ready_message == {"dtype": "x"}
            assert updates == [("router", "load", 1, 2), ("router", "check", 0, 0)]
    asyncio.run(scenario())


def test_child_logs_are_passed_on_in_whole_lines(capfd: pytest.CaptureFixture[str]) -> None:
    program = (PARSE_ARGUMENTS + "[print(sys.argv[1] * 5, number, file=file, flush=True) for number in range(300) "
                                 "for file in (sys.stdout, sys.stderr)]; " + REPORT_READY + WAIT_FOR_PARENT)

    async def scenario() -> None:
        async with run_process(program) as one, run_process(program) as other:
            assert await one.ready_task
            assert await other.ready_task
    asyncio.run(scenario())
    out, errors = capfd.readouterr()
    assert out == ""
    numbers = [int(line.rsplit("} ", 1)[1]) for line in errors.splitlines()]
    assert sorted(numbers) == sorted([*range(300)] * 4)
    assert {line.count('"name"') for line in errors.splitlines()} == {5}


def test_signal_leaves_the_exit_code_to_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Popen.poll` collects the exit code of a child that has just ended, so that asyncio reports 255."""
    async def scenario() -> int:
        async with run_process(PARSE_ARGUMENTS + REPORT_READY + WAIT_FOR_PARENT) as process:
            await process.ready_task
            process.send_signal(signal.SIGTERM)
            return await process.exit_task

    monkeypatch.setattr(subprocess.Popen, "poll", lambda _: pytest.fail("polled"))
    assert asyncio.run(scenario()) == -signal.SIGTERM


def test_child_that_ignores_sigterm_is_killed() -> None:
    async def scenario() -> None:
        async with run_process(SIGTERM_IGNORING_PROGRAM) as process:
            await process.ready_task
            await terminate_all([process], 0.01)
            assert process.exit_task.result() == -signal.SIGKILL
    asyncio.run(scenario())


# -- a whole server


def test_server_is_ready_when_all_children_are(run_with_server: Callable[..., None],
                                               child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        assert await child_starts.read_next(3) == {"s0", "s1", "router"}
        await harness.ready.wait()
    run_with_server(scenario)


def test_ready_router_alone_is_not_enough(run_with_server: Callable[..., None], child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        assert await harness.server._router_processes[0].ready_task
        assert not harness.ready.is_set()
    run_with_server(scenario, shard=RECORD_START + WAIT_FOR_PARENT)


def test_broken_shards_are_replaced_while_the_router_is_not_ready(
        run_with_server: Callable[..., None], child_starts: ChildStartLog, capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._router_processes[0].send_signal(signal.SIGKILL)
        assert await child_starts.read_next(3) == {"router", "s0", "s1"}
    count_starts = "times = open(told['births'] + '.times', 'a+'); times.write('x'); times.seek(0); "
    report_state = "os.write(told['ready_fd'], b'broken no answer\\n' if len(times.read()) > 1 else b'ready\\n'); "
    run_with_server(scenario, router=RECORD_START + count_starts + report_state + WAIT_FOR_PARENT)
    assert "weft: the shards do not work: no answer\n" in capfd.readouterr().err


@pytest.mark.parametrize("part", ["shard", "router"])
def test_failed_start_ends_the_server_with_the_reason(run_with_server: Callable[..., None], part: str) -> None:
    async def scenario(harness: ServerHarness) -> None:
        with pytest.raises(LaunchError, match="no more room"):
            await harness.keep_task
        assert not harness.ready.is_set()
    run_with_server(scenario, **{part: PARSE_ARGUMENTS + "os.write(told['ready_fd'], b'failed no more room\\n')"})


@pytest.mark.parametrize("part", ["shard", "router"])
@pytest.mark.parametrize(("program", "kind"), [
    (PARSE_ARGUMENTS + "os.write(told['ready_fd'], b'failed no such flag\\n'); sys.exit(2)", ConfigurationError),
    (PARSE_ARGUMENTS + "os.write(told['ready_fd'], b'failed no more room\\n'); sys.exit(1)", LaunchError),
    (PARSE_ARGUMENTS + "sys.exit(2)", LaunchError)])
def test_exit_code_of_a_failed_child_selects_the_error_type(
        run_with_server: Callable[..., None], part: str, program: str, kind: type[LaunchError]) -> None:
    """An exit code alone may come from anything, such as a Python that is broken."""
    async def scenario(harness: ServerHarness) -> None:
        with pytest.raises(LaunchError) as failed:
            await harness.keep_task
        assert failed.type is kind
    run_with_server(scenario, **{part: program})


def test_forbidden_port_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_permission_error(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("launcher.supervisor.supervisor.bind_socket", raise_permission_error)
    monkeypatch.setattr("socket.socket", lambda *_: None)
    with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:80 \(Permission denied\)"):
        bind_listener("127.0.0.1", 80)


def test_failing_shard_is_noticed_while_another_waits(run_with_server: Callable[..., None]) -> None:
    async def scenario(harness: ServerHarness) -> None:
        with pytest.raises(LaunchError, match="s1 ended with exit code 3"):
            await harness.keep_task
    run_with_server(scenario, shard=PARSE_ARGUMENTS + "told['name'] == 's1' and sys.exit(3); " + WAIT_FOR_PARENT)


def test_dead_shard_replaces_all_shards_but_not_the_router(
        run_with_server: Callable[..., None], child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._shard_processes[1].send_signal(signal.SIGKILL)
        assert await child_starts.read_next(2) == {"s0", "s1"}
        assert not harness.server._router_processes[0].exit_task.done()
    run_with_server(scenario)


def test_every_shard_generation_has_its_own_meeting_point(run_with_server: Callable[..., None],
                                                          child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        [first] = await child_starts.read_next(2)
        await harness.ready.wait()
        harness.server._shard_processes[0].send_signal(signal.SIGKILL)
        [second] = await child_starts.read_next(2)
        assert (first, second) == ("/meeting-1", "/meeting-2")
    run_with_server(scenario, shard=MEETING_POINT_PROGRAM, router=PARSE_ARGUMENTS + REPORT_READY + WAIT_FOR_PARENT)


class RemoteShards:
    """Shards of another host that a test ends."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.is_remote = True
        self.ready_task: asyncio.Future[bool] = loop.create_future()
        self.exit_task: asyncio.Future[int] = loop.create_future()
        self.has_own_exit_cause = self.will_rejoin = False
        self.received_signals: list[signal.Signals] = []
        self.ready_task.set_result(True)

    def send_signal(self, signal_number: signal.Signals) -> None:
        self.received_signals.append(signal_number)
        self.end()

    def end(self, *, has_own_exit_cause: bool = False, will_rejoin: bool = False) -> None:
        if not self.exit_task.done():
            self.has_own_exit_cause, self.will_rejoin = has_own_exit_cause, will_rejoin
            self.exit_task.set_result(1)

    def make_error(self) -> LaunchError:
        return LaunchError(self.describe_exit())

    def describe_exit(self) -> str:
        return "node 1 is lost"

    async def wait_until_closed(self) -> None:
        """Return at once."""


class ScriptedHosts(RemoteHosts):
    """Another host whose shards of each start a test gets."""

    def __init__(self) -> None:
        self.starts: asyncio.Queue[RemoteShards] = asyncio.Queue()
        self.is_closed = False

    async def start_shards(self, start_number: int) -> list[RemoteShards]:
        self.starts.put_nowait(shards := RemoteShards())
        return [shards]

    async def close(self) -> None:
        self.is_closed = True


def test_lost_host_replaces_all_shards_even_before_the_first_readiness(
        run_with_server: Callable[..., None], child_starts: ChildStartLog) -> None:
    hosts = ScriptedHosts()

    async def scenario(harness: ServerHarness) -> None:
        first = await hosts.starts.get()
        await child_starts.read_next(2)
        assert not harness.ready.is_set()
        first.end(has_own_exit_cause=True, will_rejoin=True)
        await hosts.starts.get()
        assert await child_starts.read_next(2) == {"s0", "s1"}
        await harness.stop()
        assert hosts.is_closed
    run_with_server(scenario, router=PARSE_ARGUMENTS + WAIT_FOR_PARENT, remote_hosts=hosts)


def test_host_that_is_lost_often_is_awaited_every_time(run_with_server: Callable[..., None]) -> None:
    hosts = ScriptedHosts()

    async def scenario(harness: ServerHarness) -> None:
        for _ in range(MAX_DEATHS + 1):
            next_start = asyncio.create_task(hosts.starts.get())
            await asyncio.wait([next_start, harness.keep_task], return_when=asyncio.FIRST_COMPLETED)
            assert not harness.keep_task.done()
            next_start.result().end(has_own_exit_cause=True, will_rejoin=True)
    run_with_server(scenario, remote_hosts=hosts)


def test_dead_shard_ends_those_of_other_hosts(
        run_with_server: Callable[..., None], child_starts: ChildStartLog) -> None:
    hosts = ScriptedHosts()

    async def scenario(harness: ServerHarness) -> None:
        first = await hosts.starts.get()
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._shard_processes[1].send_signal(signal.SIGKILL)
        await hosts.starts.get()
        assert first.received_signals
        assert await child_starts.read_next(2) == {"s0", "s1"}
    run_with_server(scenario, remote_hosts=hosts)


def test_cause_is_the_host_that_was_lost_and_not_the_shard_that_noticed_it() -> None:
    async def scenario() -> None:
        noticed, lost = RemoteShards(), RemoteShards()
        noticed.end()
        asyncio.get_running_loop().call_soon(lambda: lost.end(has_own_exit_cause=True))
        assert await wait_for_exit_cause([noticed, lost]) is lost
        without_cause = RemoteShards()
        without_cause.end()
        assert await wait_for_exit_cause([noticed, without_cause]) is noticed
    asyncio.run(scenario())


def test_dead_router_is_replaced_but_not_the_shards(run_with_server: Callable[..., None],
                                                    child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._router_processes[0].send_signal(signal.SIGKILL)
        assert await child_starts.read_next(1) == {"router"}
        assert not any(shard.exit_task.done() for shard in harness.server._shard_processes)
    run_with_server(scenario)


def test_shards_reported_broken_by_the_router_are_replaced(
        run_with_server: Callable[..., None], child_starts: ChildStartLog, capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._router_processes[0].send_signal(signal.SIGUSR1)
        assert await child_starts.read_next(2) == {"s0", "s1"}
    on_signal = "signal.signal(signal.SIGUSR1, lambda *_: os.write(told['ready_fd'], b'broken no answer\\n')); "
    run_with_server(scenario, router=PARSE_ARGUMENTS + on_signal + RECORD_START.removeprefix(PARSE_ARGUMENTS)
                    + REPORT_READY + WAIT_FOR_PARENT)
    assert "weft: the shards do not work: no answer\n" in capfd.readouterr().err


def test_first_router_death_is_replaced_at_once(run_with_server: Callable[..., None],
                                                child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._router_processes[0].send_signal(signal.SIGKILL)
        assert await child_starts.read_next(1) == {"router"}
    run_with_server(scenario, pauses=(3600.0,))


def test_ready_callback_is_called_once(run_with_server: Callable[..., None], child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._router_processes[0].send_signal(signal.SIGKILL)
        await child_starts.read_next(1)
        assert harness.ready_infos == [{"tokens": 5}]
    run_with_server(scenario, router=RECORD_START + """os.write(told['ready_fd'], b'ready 80 {"tokens": 5}\\n'); """
                    + WAIT_FOR_PARENT)


def test_display_ends_after_shards_are_replaced(run_with_server: Callable[..., None],
                                                child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._shard_processes[0].send_signal(signal.SIGKILL)
        await child_starts.read_next(2)
        await harness.server._shards_ready.wait()  # those of the new shards
        assert harness.display._timer is None
    run_with_server(scenario, shard=RECORD_START + "os.write(told['ready_fd'], b'progress load 1 2\\n'); "
                    + REPORT_READY + WAIT_FOR_PARENT)


def test_child_that_dies_too_often_is_not_replaced(run_with_server: Callable[..., None],
                                                   child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        for _ in range(4):
            harness.server._router_processes[0].send_signal(signal.SIGKILL)
            assert await child_starts.read_next(1) == {"router"}
        harness.server._router_processes[0].send_signal(signal.SIGKILL)
        with pytest.raises(TooManyDeathsError,
                           match=r"router was ended by signal 9; that was death number 5 .* giving up"):
            await harness.keep_task
    run_with_server(scenario)


def test_deaths_of_shards_and_router_are_counted_separately(
        run_with_server: Callable[..., None], child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await child_starts.read_next(3)
        await harness.ready.wait()
        harness.server._shard_processes[0].send_signal(signal.SIGKILL)
        await child_starts.read_next(2)
        harness.server._router_processes[0].send_signal(signal.SIGKILL)
        assert await child_starts.read_next(1) == {"router"}
    run_with_server(scenario, pauses=(0.0,))


def test_router_ends_before_the_shards(run_with_server: Callable[..., None]) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await harness.ready.wait()
        exit_order: list[str] = []
        for process in harness.server._shard_processes + harness.server._router_processes:
            process.exit_task.add_done_callback(lambda _, name=process.name: exit_order.append(name))
        await harness.stop()
        assert exit_order[0] == "router"
    run_with_server(scenario)


def test_router_is_asked_for_a_recording_when_ready(
        run_with_server: Callable[..., None], child_starts: ChildStartLog) -> None:
    async def scenario(harness: ServerHarness) -> None:
        harness.server.ask_router_for_recording()  # no router is running yet
        await harness.ready.wait()
        await child_starts.read_next(3)
        harness.server.ask_router_for_recording()
        assert await child_starts.read_next(1) == {"recorded"}
    record_signal = "open(told['births'], 'a').write('recorded\\n')"
    run_with_server(scenario, router=PARSE_ARGUMENTS + f"signal.signal(signal.SIGUSR1, lambda *_: {record_signal}); "
                    + RECORD_START.removeprefix(PARSE_ARGUMENTS) + REPORT_READY + WAIT_FOR_PARENT + "; "
                    + WAIT_FOR_PARENT)


def test_kill_cuts_a_graceful_stop_short(run_with_server: Callable[..., None]) -> None:
    async def scenario(harness: ServerHarness) -> None:
        await harness.ready.wait()
        harness.keep_task.cancel()
        stop = asyncio.create_task(harness.server.stop_processes(3600.0))
        await asyncio.sleep(0)
        harness.server.kill_all_processes()
        await stop
    run_with_server(scenario, router=SIGTERM_IGNORING_PROGRAM)


# -- socket


def test_bound_socket_refuses_clients_until_it_listens() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
        listener.listen()
        socket.create_connection(listener.getsockname()).close()


def test_taken_port_error_names_the_flag() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(LaunchError, match=f"cannot listen on 127.0.0.1:{port} .*; choose another port with --port"):
            bind_listener("127.0.0.1", port)


def test_foreign_address_error_names_the_flag() -> None:
    with pytest.raises(LaunchError, match=r"cannot listen on 192.0.2.1:0 .* --hostname"):
        bind_listener("192.0.2.1", 0)
