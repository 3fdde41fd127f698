import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shard.config import ShardConfig
from shard.errors import NoRoom
from shard.pb import shard_pb2 as pb
from shard.pb.shard_pb2_grpc import ShardStub
from shard.rpc.server import OPTIONS, Presence, end_within, exit_code, imported, listening, spin_shortly, watch_parent
from shard.rpc.service import ShardService
from shard.simulator.worker import SimulatedWorker
from tests.shard.messages import WARMUP

WATCH = health_pb2.HealthCheckRequest()
# A shard whose model is a pipe: it loads until the pipe is closed, and fails with the text written to it, if any.
LOADER = """
import threading, shard.rpc.server
from pathlib import Path
from shard.simulator.worker import SimulatedWorker

class ModelWorker(SimulatedWorker):
    def __init__(self, config, on_progress):
        super().__init__(config)
        on_progress("load", 1, 2)
        self.threads = {threading.get_ident()}
        if wrong := Path(config.model).read_text():
            raise ValueError(wrong)

    def warmup(self, request):
        self.threads.add(threading.get_ident())
        return super().warmup(request)

    def info(self):
        answer = super().info()
        answer.model = f"{len(self.threads)} thread"
        return answer

shard.rpc.server.MODEL_WORKER, shard.rpc.server.PARENT_GRACE = "__main__:ModelWorker", 0.0
shard.rpc.server.main()
"""


@dataclass
class Loading:
    """A loading shard: its process, the other ends of its pipes, and its socket."""

    child: "subprocess.Popen[str]"
    ready: TextIO
    parent: TextIO
    model: TextIO
    socket: Path

    def finish(self, wrong: str = "") -> None:
        self.model.write(wrong)
        self.model.close()


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Loading]:
    socket, model = tmp_path / "shard", tmp_path / "model"
    os.mkfifo(model)
    (ready, announce), (parent, alive) = os.pipe(), os.pipe()
    config = json.dumps({"socket": f"unix:{socket}", "model": str(model), "ready_fd": announce, "parent_fd": parent})
    with (subprocess.Popen([sys.executable, "-P", "-c", LOADER, config], pass_fds=[announce, parent], text=True,
                           stderr=subprocess.PIPE) as child, os.fdopen(ready) as said, os.fdopen(alive, "w") as held):
        os.close(announce)
        os.close(parent)
        with model.open("w") as written:  # blocks until the child opens the pipe
            yield Loading(child, said, held, written, socket)
        child.kill()


@pytest.mark.slow
@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_a_shard_says_when_it_is_ready_and_ends_when_told_to(tmp_path: Path, order: signal.Signals) -> None:
    ready, announce = os.pipe()
    config = json.dumps({"socket": f"unix:{tmp_path}/shard", "ready_fd": announce})
    with subprocess.Popen([sys.executable, "-P", "-m", "shard.rpc.server", config], pass_fds=[announce]) as child:
        os.close(announce)
        with os.fdopen(ready) as lines:
            assert lines.read() == "ready\n"
        with grpc.insecure_channel(f"unix:{tmp_path}/shard") as channel:
            assert ShardStub(channel).Info(pb.InfoRequest()).model == "simulated"
        child.send_signal(order)
        assert child.wait() == 0
    assert not (tmp_path / "shard").exists()


@pytest.mark.slow
def test_a_shard_is_ready_when_its_model_is_loaded(loading: Loading) -> None:
    assert not loading.socket.exists()
    loading.finish()
    assert loading.ready.read() == "progress load 1 2\nready\n"
    with grpc.insecure_channel(f"unix:{loading.socket}") as channel:
        ShardStub(channel).Warmup(WARMUP)
        assert ShardStub(channel).Info(pb.InfoRequest()).model == "1 thread"
    loading.child.terminate()
    assert loading.child.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_a_shard_that_loads_ends_at_once_when_told_to(loading: Loading, order: signal.Signals) -> None:
    loading.child.send_signal(order)
    assert loading.child.wait() == -order
    assert loading.ready.readlines()[1:] == []


@pytest.mark.slow
def test_a_shard_that_loads_leaves_when_its_parent_is_gone(loading: Loading) -> None:
    loading.parent.close()
    assert loading.child.wait() == 1


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_one_line_for_the_parent(loading: Loading) -> None:
    loading.finish("there is\nno such model")
    assert loading.ready.readlines()[-1] == "failed there is no such model\n"
    assert loading.child.wait() == 2
    assert loading.child.stderr.read() == ""


@pytest.mark.slow
def test_without_a_parent_it_is_one_line_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("there is no such model")
    config = json.dumps({"socket": f"unix:{tmp_path}/shard", "model": f"{tmp_path}/model"})
    shard = subprocess.run([sys.executable, "-P", "-c", LOADER, config], capture_output=True, text=True, check=False)
    assert (shard.returncode, shard.stderr) == (2, "weft: there is no such model\n")


@pytest.mark.parametrize(("error", "code"), [
    (ValueError("no such architecture"), 2), (PermissionError(13, "Permission denied"), 2),
    (NoRoom("the weights take 3 GiB"), 1), (OSError(5, "Input/output error"), 1)])
def test_the_exit_code_says_whether_to_start_again_makes_sense(error: ValueError | OSError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.slow
def test_a_simulated_shard_never_loads_torch() -> None:
    program = "import sys; from shard.rpc.server import *; make_worker(ShardConfig()); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "numpy"} & set(ran.stdout.split())


def test_a_shard_leaves_when_the_pipe_of_its_parent_ends() -> None:
    async def story() -> None:
        gone, (reader, writer) = asyncio.Event(), os.pipe()
        watch_parent(reader, 0.0, gone.set)
        os.write(writer, b"still here")
        os.close(writer)
        await gone.wait()
        os.close(reader)
    asyncio.run(story())


def test_a_shard_without_a_parent_stays() -> None:
    async def story() -> None:
        watch_parent(-1, 0.0, pytest.fail)
    asyncio.run(story())


def test_a_worker_that_does_not_wake_up_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda _: left.set())
    end_within(0.0)
    assert left.wait(10.0)


def test_the_health_of_a_shard_is_watched_by_its_router_and_it_leaves_when_that_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        gone, config = asyncio.Event(), ShardConfig(f"unix:{tmp_path}/shard")
        service = ShardService(SimulatedWorker(config), 1.0)
        async with (listening(config.socket, service, Presence(0.0, gone.set)),
                    grpc.aio.insecure_channel(config.socket) as channel):
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(WATCH), stub.Watch(WATCH)]
            assert {(await watch.read()).status for watch in watches} == {health_pb2.HealthCheckResponse.SERVING}
            watches[0].cancel()
            await stub.Check(WATCH)
            assert not gone.is_set()
            watches[1].cancel()
            await gone.wait()
    asyncio.run(story())


def test_a_router_that_comes_back_in_time_keeps_its_shard() -> None:
    class Context:
        async def write(self, _: object) -> None:
            pass

    async def story() -> None:
        presence = Presence(60.0, pytest.fail)
        for timer_before in (False, True):
            assert (presence._timer is not None) == timer_before
            watch = asyncio.ensure_future(presence.Watch(WATCH, Context()))
            await asyncio.sleep(0)
            assert presence._timer is None or presence._timer.cancelled()
            watch.cancel()
            await asyncio.wait([watch])
        presence.close()
    asyncio.run(story())


def test_large_messages_pass(tmp_path: Path) -> None:
    async def story() -> None:
        config = ShardConfig(f"unix:{tmp_path}/shard")
        service = ShardService(SimulatedWorker(config), 1.0)
        async with (listening(config.socket, service, Presence(60.0, lambda: None)),
                    grpc.aio.insecure_channel(config.socket, options=OPTIONS) as channel):
            grammar = pb.LoadRequest(kind=pb.KIND_GRAMMAR, id=1, source="x" * 8_000_000)
            assert (await ShardStub(channel).Load(grammar)).bytes == 8_000_000
    asyncio.run(story())


def test_what_was_imported_is_not_looked_through_again() -> None:
    before = gc.get_freeze_count()
    assert imported("shard.workers.decoder").__name__ == "shard.workers.decoder"
    assert gc.get_freeze_count() > before
    assert gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_at_work() -> None:
    with pytest.raises(ModuleNotFoundError):
        imported("shard.worke")
    assert gc.isenabled()


@pytest.mark.parametrize(("told", "then"), [
    ({}, {"GOMP_SPINCOUNT": "5000"}),
    ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
])
def test_threads_spin_shortly_unless_the_user_decided(told: dict[str, str], then: dict[str, str]) -> None:
    spin_shortly(told)
    assert told == then


@pytest.mark.slow
def test_the_openmp_of_torch_spins_as_it_was_told() -> None:
    program = "import os, shard.rpc.server; shard.rpc.server.spin_shortly(os.environ); import torch"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True,
                          env=environment | {"OMP_DISPLAY_ENV": "verbose"})
    assert "GOMP_SPINCOUNT = '5000'" in done.stderr
