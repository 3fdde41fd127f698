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
from support.shards.protocol_messages import WARMUP_REQUEST

from shard.config import ShardConfig
from shard.errors import StartupOutOfMemory
from shard.pb import shard_pb2 as pb
from shard.pb.shard_pb2_grpc import ShardStub
from shard.rpc.server import (
    GRPC_OPTIONS,
    HealthService,
    choose_startup_exit_code,
    force_exit_after,
    import_without_gc,
    serve_grpc,
    shorten_openmp_spin,
    watch_parent,
)
from shard.rpc.service import ShardService
from shard.simulator.worker import SimulatedWorker

HEALTH_REQUEST = health_pb2.HealthCheckRequest()
# A shard whose model is a pipe: it loads until the pipe is closed, and fails with the text written to it, if any.
LOADING_SHARD_PROGRAM = """
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

shard.rpc.server.MODEL_WORKER_FACTORY, shard.rpc.server.PARENT_GRACE_SECONDS = "__main__:ModelWorker", 0.0
shard.rpc.server.main()
"""


@dataclass
class LoadingShard:
    """A loading shard: its process, the other ends of its pipes, and its socket."""

    process: "subprocess.Popen[str]"
    ready_pipe: TextIO
    parent_pipe: TextIO
    model_pipe: TextIO
    socket_path: Path

    def finish_loading(self, error: str = "") -> None:
        self.model_pipe.write(error)
        self.model_pipe.close()


@pytest.fixture
def loading_shard(tmp_path: Path) -> Iterator[LoadingShard]:
    socket, model = tmp_path / "shard", tmp_path / "model"
    os.mkfifo(model)
    (ready, announce), (parent, alive) = os.pipe(), os.pipe()
    config = json.dumps({"socket": f"unix:{socket}", "model": str(model), "ready_fd": announce, "parent_fd": parent})
    with (subprocess.Popen([sys.executable, "-P", "-c", LOADING_SHARD_PROGRAM, config], pass_fds=[announce, parent],
                           text=True, stderr=subprocess.PIPE) as child, os.fdopen(ready) as ready_pipe,
          os.fdopen(alive, "w") as parent_pipe):
        os.close(announce)
        os.close(parent)
        with model.open("w") as model_pipe:  # blocks until the child opens the pipe
            yield LoadingShard(child, ready_pipe, parent_pipe, model_pipe, socket)
        child.kill()


@pytest.mark.slow
@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_shard_announces_readiness_and_exits_on_signals(tmp_path: Path, order: signal.Signals) -> None:
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
def test_a_shard_is_ready_when_its_model_is_loaded(loading_shard: LoadingShard) -> None:
    assert not loading_shard.socket_path.exists()
    loading_shard.finish_loading()
    assert loading_shard.ready_pipe.read() == "progress load 1 2\nready\n"
    with grpc.insecure_channel(f"unix:{loading_shard.socket_path}") as channel:
        ShardStub(channel).Warmup(WARMUP_REQUEST)
        assert ShardStub(channel).Info(pb.InfoRequest()).model == "1 thread"
    loading_shard.process.terminate()
    assert loading_shard.process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_loading_shard_exits_at_once_on_signals(loading_shard: LoadingShard, order: signal.Signals) -> None:
    loading_shard.process.send_signal(order)
    assert loading_shard.process.wait() == -order
    assert loading_shard.ready_pipe.readlines()[1:] == []


@pytest.mark.slow
def test_loading_shard_exits_when_its_parent_is_gone(loading_shard: LoadingShard) -> None:
    loading_shard.parent_pipe.close()
    assert loading_shard.process.wait() == 1


@pytest.mark.slow
def test_load_failure_is_reported_to_the_parent_on_one_line(loading_shard: LoadingShard) -> None:
    loading_shard.finish_loading("there is\nno such model")
    assert loading_shard.ready_pipe.readlines()[-1] == "failed there is no such model\n"
    assert loading_shard.process.wait() == 2
    assert loading_shard.process.stderr.read() == ""


@pytest.mark.slow
def test_load_failure_without_a_parent_is_one_line_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("there is no such model")
    config = json.dumps({"socket": f"unix:{tmp_path}/shard", "model": f"{tmp_path}/model"})
    shard = subprocess.run([sys.executable, "-P", "-c", LOADING_SHARD_PROGRAM, config], capture_output=True, text=True,
                           check=False)
    assert (shard.returncode, shard.stderr) == (2, "weft: there is no such model\n")


@pytest.mark.parametrize(("error", "code"), [
    (ValueError("no such architecture"), 2), (PermissionError(13, "Permission denied"), 2),
    (StartupOutOfMemory("the weights take 3 GiB"), 1), (OSError(5, "Input/output error"), 1)])
def test_exit_code_depends_on_whether_a_restart_may_help(error: ValueError | OSError, code: int) -> None:
    assert choose_startup_exit_code(error) == code


@pytest.mark.slow
def test_simulated_shard_never_imports_torch() -> None:
    program = "import sys; from shard.rpc.server import *; make_worker(ShardConfig()); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "numpy"} & set(result.stdout.split())


def test_parent_watcher_fires_when_the_parent_pipe_is_closed() -> None:
    async def scenario() -> None:
        gone, (reader, writer) = asyncio.Event(), os.pipe()
        watch_parent(reader, 0.0, gone.set)
        os.write(writer, b"still here")
        os.close(writer)
        await gone.wait()
        os.close(reader)
    asyncio.run(scenario())


def test_parent_watcher_does_nothing_without_a_parent() -> None:
    async def scenario() -> None:
        watch_parent(-1, 0.0, pytest.fail)
    asyncio.run(scenario())


def test_exit_is_forced_when_a_worker_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    exited = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda _: exited.set())
    force_exit_after(0.0)
    assert exited.wait(10.0)


def test_health_service_reports_when_the_last_watcher_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        gone, config = asyncio.Event(), ShardConfig(f"unix:{tmp_path}/shard")
        service = ShardService(SimulatedWorker(config), 1.0)
        async with (serve_grpc(config.socket, service, HealthService(0.0, gone.set)),
                    grpc.aio.insecure_channel(config.socket) as channel):
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(HEALTH_REQUEST), stub.Watch(HEALTH_REQUEST)]
            assert {(await watch.read()).status for watch in watches} == {health_pb2.HealthCheckResponse.SERVING}
            watches[0].cancel()
            await stub.Check(HEALTH_REQUEST)
            assert not gone.is_set()
            watches[1].cancel()
            await gone.wait()
    asyncio.run(scenario())


def test_watcher_that_returns_in_time_keeps_the_shard_running() -> None:
    class FakeContext:
        async def write(self, _: object) -> None:
            pass

    async def scenario() -> None:
        health_service = HealthService(60.0, pytest.fail)
        for timer_before in (False, True):
            assert (health_service._unwatched_timer is not None) == timer_before
            watch = asyncio.ensure_future(health_service.Watch(HEALTH_REQUEST, FakeContext()))
            await asyncio.sleep(0)
            assert health_service._unwatched_timer is None or health_service._unwatched_timer.cancelled()
            watch.cancel()
            await asyncio.wait([watch])
        health_service.close()
    asyncio.run(scenario())


def test_large_messages_are_accepted(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = ShardConfig(f"unix:{tmp_path}/shard")
        service = ShardService(SimulatedWorker(config), 1.0)
        async with (serve_grpc(config.socket, service, HealthService(60.0, lambda: None)),
                    grpc.aio.insecure_channel(config.socket, options=GRPC_OPTIONS) as channel):
            grammar = pb.LoadRequest(kind=pb.KIND_GRAMMAR, id=1, source="x" * 8_000_000)
            assert (await ShardStub(channel).Load(grammar)).bytes == 8_000_000
    asyncio.run(scenario())


def test_imported_objects_are_frozen_in_the_garbage_collector() -> None:
    before = gc.get_freeze_count()
    assert import_without_gc("shard.workers.decoder").__name__ == "shard.workers.decoder"
    assert gc.get_freeze_count() > before
    assert gc.isenabled()


def test_failed_import_leaves_the_garbage_collector_enabled() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_without_gc("shard.worke")
    assert gc.isenabled()


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, {"GOMP_SPINCOUNT": "10000"}),
    ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
])
def test_openmp_spin_is_shortened_unless_the_user_set_it(environment: dict[str, str], expected: dict[str, str]) -> None:
    shorten_openmp_spin(environment)
    assert environment == expected


@pytest.mark.slow
def test_openmp_of_torch_uses_the_shortened_spin() -> None:
    program = "import os, shard.rpc.server; shard.rpc.server.shorten_openmp_spin(os.environ); import torch"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    result = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True,
                            env=environment | {"OMP_DISPLAY_ENV": "verbose"})
    assert "GOMP_SPINCOUNT = '10000'" in result.stderr
