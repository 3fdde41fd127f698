"""Tests of starting, replacing and stopping child processes, with one-line programs as children."""

import asyncio
import io
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.supervisor.plan import Child, Plan
from launcher.supervisor.startup_display import Display
from launcher.supervisor.supervisor import Failed, GaveUp, Misconfigured, Process, Server, bind, end_all

START = "import json, os, signal, sys; told = json.loads(sys.argv[1]); "
BORN = START + "open(told['births'], 'a').write(told['name'] + '\\n'); "
READY = "os.write(told['ready_fd'], b'ready\\n'); "
WAIT = "os.read(told['parent_fd'], 1)"
STUBBORN = START + "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + WAIT
LASTING = BORN + READY + WAIT
MEETING = START + "open(told['births'], 'a').write(told['meeting_point'] + '\\n'); " + READY + WAIT


class Births:
    """The names of the children in the order in which they were started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def next(self, count: int) -> set[str]:
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
def births(tmp_path: Path) -> Iterator[Births]:
    births = Births(tmp_path / "births")
    yield births
    births.close()


def child(name: str, program: str, births: Births | None = None) -> Child:
    told = {"name": name, "births": str(births.path) if births else ""}
    return Child(name, (sys.executable, "-I", "-S", "-c", program), told)


@asynccontextmanager
async def started(program: str, display: Display | None = None) -> AsyncIterator[Process]:
    parent_fd, held_open = os.pipe()
    process = await Process.start(child("router", program), display or Display(io.StringIO()), parent_fd=parent_fd)
    yield process
    await end_all([process], 0)
    os.close(parent_fd)
    os.close(held_open)


class Served:
    """A server of two shards and a router, and the task that keeps it."""

    def __init__(self, births: Births, shard: str, router: str, pauses: tuple[float, ...], parent_fd: int) -> None:
        self.ready = asyncio.Event()
        plan = Plan((child("s0", shard, births), child("s1", shard, births)), child("router", router, births), "")
        self.told: list[dict[str, Any]] = []
        self.display = Display(io.StringIO())
        self.server = Server(plan, bind("127.0.0.1", 0), parent_fd, self._serve, display=self.display, pauses=pauses)
        self.keep = asyncio.create_task(self.server.keep())

    def _serve(self, told: dict[str, Any]) -> None:
        self.told.append(told)
        self.ready.set()

    async def stop(self) -> None:
        self.keep.cancel()
        await asyncio.wait([self.keep])
        await self.server.stop(5.0)


@pytest.fixture
def serving(births: Births) -> Callable[..., None]:
    """Return a function that runs a story with a server and stops the server at the end."""
    def run(story: Callable[[Served], Awaitable[None]], shard: str = LASTING, router: str = LASTING,
            pauses: tuple[float, ...] = (0, 0)) -> None:
        async def main() -> None:
            parent_fd, held_open = os.pipe()
            served = Served(births, shard, router, pauses, parent_fd)
            try:
                await story(served)
            finally:
                await served.stop()
                os.close(parent_fd)
                os.close(held_open)
        asyncio.run(main())
    return run


# -- one child


def test_a_child_says_when_it_is_ready() -> None:
    async def story() -> None:
        async with started(START + READY + WAIT) as process:
            assert await process.ready
    asyncio.run(story())


@pytest.mark.parametrize(("program", "how"), [
    ("raise SystemExit(3)", "router ended with exit code 3"),
    ("import os; os.kill(os.getpid(), 9)", "router was ended by signal 9"),
    (START + "os.write(told['ready_fd'], b'failed no more room\\n')", "router: no more room"),
])
def test_how_a_child_ended_that_never_was_ready(program: str, how: str) -> None:
    async def story() -> None:
        async with started(program) as process:
            assert not await process.ready
            assert process.how() == how
    asyncio.run(story())


def test_what_a_child_tells_of_its_start_is_shown_and_what_it_serves_is_kept() -> None:
    lines = r"""progress load 1 2\nprogress check 0 0\nready 80 {"dtype": "x"}\n"""
    program = START + f"os.write(told['ready_fd'], b'{lines}'); "
    heard: list[tuple[str, str, int, int]] = []

    class Listening(Display):
        def hear(self, *news: Any) -> None:
            heard.append(news)

    async def story() -> None:
        async with started(program + WAIT, Listening(io.StringIO())) as process:
            assert await process.ready
            assert process.told == {"dtype": "x"}
            assert heard == [("router", "load", 1, 2), ("router", "check", 0, 0)]
    asyncio.run(story())


def test_what_children_log_comes_through_whole(capfd: pytest.CaptureFixture[str]) -> None:
    program = START + "[print(sys.argv[1] * 5, number, file=file, flush=True) for number in range(300) " \
        "for file in (sys.stdout, sys.stderr)]; " + READY + WAIT

    async def story() -> None:
        async with started(program) as one, started(program) as other:
            assert await one.ready
            assert await other.ready
    asyncio.run(story())
    out, errors = capfd.readouterr()
    assert out == ""
    numbers = [int(line.rsplit("} ", 1)[1]) for line in errors.splitlines()]
    assert sorted(numbers) == sorted([*range(300)] * 4)
    assert {line.count('"name"') for line in errors.splitlines()} == {5}


def test_a_child_that_does_not_end_when_asked_is_made_to() -> None:
    async def story() -> None:
        async with started(STUBBORN) as process:
            await process.ready
            await end_all([process], 0.01)
            assert process.ended.result() == -signal.SIGKILL
    asyncio.run(story())


# -- a whole server


def test_a_server_is_ready_when_all_are_and_they_start_together(serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        assert await births.next(3) == {"s0", "s1", "router"}
        await served.ready.wait()
    serving(story)


def test_a_router_that_is_ready_is_not_enough(serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        assert await served.server._router[0].ready
        assert not served.ready.is_set()
    serving(story, shard=BORN + WAIT)


def test_shards_that_are_broken_are_replaced_though_the_router_cannot_become_ready(
        serving: Callable[..., None], births: Births, capfd: pytest.CaptureFixture[str]) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        served.server._router[0].send(signal.SIGKILL)
        assert await births.next(3) == {"router", "s0", "s1"}
    note = "times = open(told['births'] + '.times', 'a+'); times.write('x'); times.seek(0); "
    told = "os.write(told['ready_fd'], b'broken no answer\\n' if len(times.read()) > 1 else b'ready\\n'); "
    serving(story, router=BORN + note + told + WAIT)
    assert "weft: the shards do not work: no answer\n" in capfd.readouterr().err


@pytest.mark.parametrize("part", ["shard", "router"])
def test_who_cannot_start_says_why_and_that_is_all(serving: Callable[..., None], part: str) -> None:
    async def story(served: Served) -> None:
        with pytest.raises(Failed, match="no more room"):
            await served.keep
        assert not served.ready.is_set()
    serving(story, **{part: START + "os.write(told['ready_fd'], b'failed no more room\\n')"})


@pytest.mark.parametrize("part", ["shard", "router"])
@pytest.mark.parametrize(("program", "kind"), [
    (START + "os.write(told['ready_fd'], b'failed no such flag\\n'); sys.exit(2)", Misconfigured),
    (START + "os.write(told['ready_fd'], b'failed no more room\\n'); sys.exit(1)", Failed),
    (START + "sys.exit(2)", Failed)])
def test_who_gives_a_reason_says_by_its_exit_code_whether_that_will_pass(
        serving: Callable[..., None], part: str, program: str, kind: type[Failed]) -> None:
    """An exit code alone may come from anything, such as a Python that is broken."""
    async def story(served: Served) -> None:
        with pytest.raises(Failed) as failed:
            await served.keep
        assert failed.type is kind
    serving(story, **{part: program})


def test_a_port_that_nobody_may_have_is_not_one_that_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("launcher.supervisor.supervisor.bound", refused)
    monkeypatch.setattr("socket.socket", lambda *_: None)
    with pytest.raises(Misconfigured, match=r"cannot listen on 127\.0\.0\.1:80 \(Permission denied\)"):
        bind("127.0.0.1", 80)


def test_a_shard_that_cannot_start_is_noticed_while_another_waits_for_it(serving: Callable[..., None]) -> None:
    async def story(served: Served) -> None:
        with pytest.raises(Failed, match="s1 ended with exit code 3"):
            await served.keep
    serving(story, shard=START + "told['name'] == 's1' and sys.exit(3); " + WAIT)


def test_when_a_shard_dies_all_shards_are_replaced_and_the_router_stays(
        serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        served.server._shards[1].send(signal.SIGKILL)
        assert await births.next(2) == {"s0", "s1"}
        assert not served.server._router[0].ended.done()
    serving(story)


def test_every_start_of_the_shards_meets_at_a_place_of_its_own(serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        [first] = await births.next(2)
        await served.ready.wait()
        served.server._shards[0].send(signal.SIGKILL)
        [second] = await births.next(2)
        assert (first, second) == ("/meeting-1", "/meeting-2")
    serving(story, shard=MEETING, router=START + READY + WAIT)


def test_when_the_router_dies_it_is_replaced_and_the_shards_stay(serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        served.server._router[0].send(signal.SIGKILL)
        assert await births.next(1) == {"router"}
        assert not any(shard.ended.done() for shard in served.server._shards)
    serving(story)


def test_shards_that_the_router_finds_broken_are_replaced(
        serving: Callable[..., None], births: Births, capfd: pytest.CaptureFixture[str]) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        served.server._router[0].send(signal.SIGUSR1)
        assert await births.next(2) == {"s0", "s1"}
    on_signal = "signal.signal(signal.SIGUSR1, lambda *_: os.write(told['ready_fd'], b'broken no answer\\n')); "
    serving(story, router=START + on_signal + BORN.removeprefix(START) + READY + WAIT)
    assert "weft: the shards do not work: no answer\n" in capfd.readouterr().err


def test_the_first_router_that_dies_is_replaced_at_once(serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        served.server._router[0].send(signal.SIGKILL)
        assert await births.next(1) == {"router"}
    serving(story, pauses=(3600.0,))


def test_who_waits_is_told_once_what_is_served(serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        served.server._router[0].send(signal.SIGKILL)
        await births.next(1)
        assert served.told == [{"tokens": 5}]
    serving(story, router=BORN + """os.write(told['ready_fd'], b'ready 80 {"tokens": 5}\\n'); """ + WAIT)


def test_what_is_shown_ends_when_shards_were_replaced(
        serving: Callable[..., None], births: Births, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        ends: asyncio.Queue[object] = asyncio.Queue()
        end = served.display.end
        monkeypatch.setattr(served.display, "end", lambda: ends.put_nowait(end()))
        served.server._shards[0].send(signal.SIGKILL)
        await ends.get()  # one is dead
        await ends.get()  # the new ones are ready
        assert served.display._timer is None
    serving(story, shard=BORN + "os.write(told['ready_fd'], b'progress load 1 2\\n'); " + READY + WAIT)


def test_who_dies_too_often_is_not_replaced_any_more(serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        for _ in range(4):
            served.server._router[0].send(signal.SIGKILL)
            assert await births.next(1) == {"router"}
        served.server._router[0].send(signal.SIGKILL)
        with pytest.raises(GaveUp, match=r"router was ended by signal 9; that was death number 5 .* giving up"):
            await served.keep
    serving(story)


def test_the_deaths_of_shards_and_of_the_router_are_counted_apart(
        serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        await births.next(3)
        await served.ready.wait()
        served.server._shards[0].send(signal.SIGKILL)
        await births.next(2)
        served.server._router[0].send(signal.SIGKILL)
        assert await births.next(1) == {"router"}
    serving(story, pauses=(0.0,))


def test_the_router_ends_before_the_shards(serving: Callable[..., None]) -> None:
    async def story(served: Served) -> None:
        await served.ready.wait()
        order: list[str] = []
        for process in served.server._shards + served.server._router:
            process.ended.add_done_callback(lambda _, name=process.name: order.append(name))
        await served.stop()
        assert order[0] == "router"
    serving(story)


def test_the_router_is_asked_for_a_recording_when_it_can_write_one(
        serving: Callable[..., None], births: Births) -> None:
    async def story(served: Served) -> None:
        served.server.record()  # no router is running yet
        await served.ready.wait()
        await births.next(3)
        served.server.record()
        assert await births.next(1) == {"recorded"}
    note = "open(told['births'], 'a').write('recorded\\n')"
    serving(story, router=START + f"signal.signal(signal.SIGUSR1, lambda *_: {note}); "
            + BORN.removeprefix(START) + READY + WAIT + "; " + WAIT)


def test_killing_cuts_a_stop_short(serving: Callable[..., None]) -> None:
    async def story(served: Served) -> None:
        await served.ready.wait()
        served.keep.cancel()
        stop = asyncio.create_task(served.server.stop(3600.0))
        await asyncio.sleep(0)
        served.server.kill()
        await stop
    serving(story, router=STUBBORN)


# -- socket


def test_a_bound_socket_refuses_clients_until_somebody_listens() -> None:
    with bind("127.0.0.1", 0) as listener:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
        listener.listen()
        socket.create_connection(listener.getsockname()).close()


def test_a_taken_port_is_a_line_that_names_the_flag() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(Failed, match=f"cannot listen on 127.0.0.1:{port} .*; choose another port with --port"):
            bind("127.0.0.1", port)


def test_an_address_of_nobody_is_a_line_that_names_the_flag() -> None:
    with pytest.raises(Failed, match=r"cannot listen on 192.0.2.1:0 .* --hostname"):
        bind("192.0.2.1", 0)
