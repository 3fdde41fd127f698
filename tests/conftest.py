"""Checks that apply to every test: no leaked resources, no blocked event loop, no randomness by default.

    pytest           all tests but the long ones, those with official clients, in a browser, on Ray and on a GPU
    pytest -m long   the long ones, with new schedules every time
"""

import asyncio
import concurrent.futures
import ctypes
import functools
import gc
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvloop
from support.model_runs.shared_probe_cache import SHARED_FOLDER_NAME
from support.model_runs.triton_interpreter import patch_interpreter
from support.process_list import list_child_pids, read_command_line
from support.servers.weft_process import RUNNING_SERVERS

if not Path("/dev/nvidiactl").exists():  # there is no GPU: kernels are interpreted
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
PR_SET_CHILD_SUBREAPER = 36
# seconds to wait for leftovers that are already ending, such as a thread after its last task
LEFTOVER_TIMEOUT_SECONDS = 10.0
OWN_BASETEMP = pytest.StashKey[str]()  # the folder of `tmp_path` that this process has made
BLOCKING_CALLS = (  # blocking calls, each with the case in which the call returns at once
    (time, "sleep", lambda *_: False),
    (subprocess.Popen, "wait", lambda process, *_, **__: process.returncode is not None),
    (subprocess.Popen, "communicate", lambda *_, **__: False),
    (concurrent.futures.Future, "result", lambda future, *_, **__: future.done()),
)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; child processes inherit this
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.option.markexpr = config.option.markexpr or " and ".join(f"not {name}" for name in (
        "long", "clients", "proxies", "fuzz", "page", "ray", "gpu"))
    # The other method raises from a signal handler, which uvloop swallows: a test that hangs would hang for ever.
    config.option.timeout_method = "thread"
    # Fixed examples, so that a failing test is caused by the current change; `-m long` searches for new ones.
    hypothesis.settings.register_profile(
        "weft", deadline=None, database=None, print_blob=True, derandomize=config.option.markexpr != "long",
        phases=set(hypothesis.Phase) - {hypothesis.Phase.explain})  # explain traces every line, which is slow
    hypothesis.settings.load_profile("weft")
    for owner, name, returns_at_once in BLOCKING_CALLS:
        setattr(owner, name, forbid_in_event_loop(getattr(owner, name), returns_at_once))
    create_temporary_folders(config)


def pytest_collection() -> None:
    """Disable the garbage collector while test modules are imported."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Shorten the warmup of workers, prepare Triton's interpreter, and freeze all imported objects.

    No test needs a worker's measurements of large steps. The garbage collector does not scan frozen objects, so
    collecting after each test is fast.
    """
    if (warmup := sys.modules.get("shard.workers.warmup")) is not None:
        warmup.SLOW_STEP_SECONDS["cpu"] = 0.0
        warmup.MAX_REPEATED_SECONDS = 0.0
    if "torch" in sys.modules and importlib.util.find_spec("triton"):  # available on Linux only
        patch_interpreter()
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 1_000, 1_000)  # so that a test's objects are not in the oldest generation at its end


def forbid_in_event_loop(function: Callable[..., Any], returns_at_once: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is not None and not returns_at_once(*args, **kwargs):
            pytest.fail(f"{function.__qualname__} blocks the event loop")
        return function(*args, **kwargs)
    return checked


def create_temporary_folders(config: pytest.Config) -> None:
    """Create two folders of this process alone: one for `tmp_path`, one for all other temporary files.

    By default all of a user's pytest processes share the folder of `tmp_path`, and two that end at the same time fail
    over what both of them remove there.
    """
    if config.option.basetemp is None:
        config.option.basetemp = config.stash[OWN_BASETEMP] = tempfile.mkdtemp(prefix="weft-test-files-")
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="weft-tests-")
    Path(tempfile.tempdir, SHARED_FOLDER_NAME).mkdir()
    config.add_cleanup(lambda: shutil.rmtree(os.environ["TMPDIR"]))


@pytest.hookimpl(trylast=True)  # fixtures of the session have ended by then
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove what tests wrote under `tmp_path`, unless one has failed: what that one wrote may show why."""
    folder = session.config.stash.get(OWN_BASETEMP, None)
    if folder is not None and exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------------------
# Nothing is left behind


def list_open_descriptors() -> set[str]:
    """Return the open file descriptors, named by target and a count instead of their number.

    Libraries close a descriptor and open a similar one under another number.
    """
    counts: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            counts[os.readlink(f"/proc/self/fd/{number}")] += 1
    return {f"{kind} {number}" for kind, count in counts.items() for number in range(count)}


def list_threads() -> set[str]:
    return {f"{thread.name} {thread.ident}" for thread in threading.enumerate()}


def list_child_processes() -> set[str]:
    """Return our child processes and, since we are their subreaper, the orphans of ended ones."""
    with suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass
        return {f"{pid} {' '.join(read_command_line(pid))}" for pid in list_child_pids(os.getpid())}
    return set()


def list_temporary_files() -> set[str]:
    """Return the names of temporary files, but for the folder that torch makes once where transformers is imported."""
    return {name for name in os.listdir(tempfile.gettempdir()) if not name.startswith("torchinductor_")}


RESOURCE_LISTERS = {"descriptor": list_open_descriptors, "thread": list_threads, "child": list_child_processes,
                    "file": list_temporary_files}


Listers = Mapping[str, Callable[[], set[str]]]
FILE_LISTERS: Listers = {kind: RESOURCE_LISTERS[kind] for kind in ("child", "file")}


def snapshot_resources(listers: Listers = RESOURCE_LISTERS) -> set[str]:
    return {f"{kind} {resource}" for kind, list_resources in listers.items() for resource in list_resources()}


def kill_leftover_processes(leftovers: set[str]) -> None:
    for leftover in leftovers:
        if leftover.startswith("child "):
            os.kill(int(leftover.split()[1]), signal.SIGKILL)


def wait_for_leftovers(before: set[str], listers: Listers = RESOURCE_LISTERS) -> set[str]:
    """Return what exists now and did not exist before the test.

    If there is anything, wait up to LEFTOVER_TIMEOUT_SECONDS until it has ended, and collect garbage meanwhile.
    """
    end, old = time.monotonic() + LEFTOVER_TIMEOUT_SECONDS, cycle([*[1] * 20, 2])
    while (leftovers := snapshot_resources(listers) - before) and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect(next(old))  # young generations, and every 21st time all of them
    return leftovers


@pytest.fixture(scope="session")
def asyncio_errors() -> Iterator[list[str]]:
    """Collect what asyncio reports: tasks that are pending when their loop ends, and unhandled errors."""
    errors: list[str] = []
    cancel_all_tasks = asyncio.runners._cancel_all_tasks

    def record_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        errors.extend(f"task {task.get_coro()}" for task in asyncio.all_tasks(loop))
        cancel_all_tasks(loop)

    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda record: errors.append(f"error {record.getMessage()} {record.exc_info}")
    logging.getLogger("asyncio").addHandler(listener)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.runners, "_cancel_all_tasks", record_and_cancel)
        yield errors
    logging.getLogger("asyncio").removeHandler(listener)


@pytest.fixture(scope="session")
def process_wide_setup() -> None:
    """Make uvloop create its signal pipe, which it keeps from its first loop on, before any test is checked.

    Also make this process the subreaper of its descendants, so that orphaned ones become its children.
    """
    uvloop.new_event_loop().close()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@pytest.fixture(autouse=True, scope="module")
def check_file_leaves_nothing(process_wide_setup: None) -> Iterator[None]:
    """Check what fixtures of a whole file leave behind, such as a server's processes and folders. Not checked are
    descriptors and threads, which libraries keep from their first use on."""
    before = snapshot_resources(FILE_LISTERS)
    yield
    leftovers = wait_for_leftovers(before, FILE_LISTERS)
    kill_leftover_processes(leftovers)
    if leftovers:
        pytest.fail("the file left behind:\n  " + "\n  ".join(sorted(leftovers)), pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def freeze_existing_objects() -> None:
    """Exclude all existing objects from garbage collection.

    Most objects belong to libraries; scanning them after every test would take longer than the tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    """Give every test the same random numbers of torch, whatever ran before it, if the process has imported torch."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def check_no_leaks(request: pytest.FixtureRequest, asyncio_errors: list[str], process_wide_setup: None,
                   caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    if request.node.get_closest_marker("gpu"):  # CUDA opens files and starts threads at any time and keeps them
        yield
        return
    asyncio_errors.clear()
    before = snapshot_resources()
    yield
    for record in caplog.get_records("call"):  # pytest keeps records, and their tracebacks keep frames alive
        record.exc_info, record.args = None, ()
    held = [f"of {server.url}: {gauge}" for server in RUNNING_SERVERS for gauge in server.wait_until_idle()]
    leftovers = wait_for_leftovers(before)
    kill_leftover_processes(leftovers)
    if leftovers or asyncio_errors or held:
        pytest.fail("left behind:\n  " + "\n  ".join([*sorted(leftovers), *asyncio_errors, *held]), pytrace=False)
