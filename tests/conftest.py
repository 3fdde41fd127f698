"""Checks that apply to every test: no leaked resources, no blocked event loop, no randomness unless asked for.

    pytest           all tests but the long ones, those with official clients and those on a GPU
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
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvloop
from support.process_list import child_pids, command_line
from support.shared_probe_cache import KEPT
from support.triton_interpreter import prepare_interpreter

if not Path("/dev/nvidiactl").exists():  # there is no GPU: kernels are interpreted
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 10.0  # seconds to wait for leftovers that are already ending, such as a thread after its last task
BLOCKING = (  # blocking calls, each with the case in which the call returns at once
    (time, "sleep", lambda *_: False),
    (subprocess.Popen, "wait", lambda process, *_, **__: process.returncode is not None),
    (subprocess.Popen, "communicate", lambda *_, **__: False),
    (concurrent.futures.Future, "result", lambda future, *_, **__: future.done()),
)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; child processes inherit this
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.option.markexpr = config.option.markexpr or "not long and not clients and not gpu"
    # The other method raises from a signal handler, which uvloop swallows: a test that hangs would hang for ever.
    config.option.timeout_method = "thread"
    # Fixed examples, so that a failing test is caused by the current change; `-m long` searches for new ones.
    hypothesis.settings.register_profile(
        "weft", deadline=None, database=None, print_blob=True, derandomize=config.option.markexpr != "long",
        phases=set(hypothesis.Phase) - {hypothesis.Phase.explain})  # explain traces every line, which is slow
    hypothesis.settings.load_profile("weft")
    for owner, name, returns_at_once in BLOCKING:
        setattr(owner, name, never_in_a_loop(getattr(owner, name), returns_at_once))
    own_temporary_folder(config)


def pytest_collection() -> None:
    """Disable the garbage collector while test modules are imported."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Shorten the warmup of workers, prepare Triton's interpreter, and freeze all imported objects.

    No test needs a worker's measurements of large steps. The garbage collector does not scan frozen objects, so
    collecting after each test is fast.
    """
    if (warmup := sys.modules.get("shard.workers.warmup")) is not None:
        warmup.PATIENCE["cpu"] = warmup.BRIEF = 0.0
    if "torch" in sys.modules and importlib.util.find_spec("triton"):  # available on Linux only
        prepare_interpreter()
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 1_000, 1_000)  # so that a test's objects are not in the oldest generation at its end


def never_in_a_loop(function: Callable[..., Any], returns_at_once: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is not None and not returns_at_once(*args, **kwargs):
            pytest.fail(f"{function.__qualname__} blocks the event loop")
        return function(*args, **kwargs)
    return checked


def own_temporary_folder(config: pytest.Config) -> None:
    """Create a temporary folder for tests and the processes that they start; nothing else uses it, not even pytest."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="weft-tests-")
    Path(tempfile.tempdir, KEPT).mkdir()
    config.add_cleanup(lambda: shutil.rmtree(os.environ["TMPDIR"]))


# ---------------------------------------------------------------------------------------------------------------------
# Nothing is left behind


def descriptors() -> set[str]:
    """Return the open file descriptors, named by target and a count instead of their number.

    Libraries close a descriptor and open a similar one under another number.
    """
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    return {f"{kind} {number}" for kind, count in found.items() for number in range(count)}


def threads() -> set[str]:
    return {f"{thread.name} {thread.ident}" for thread in threading.enumerate()}


def children() -> set[str]:
    """Return our child processes and, since we are their subreaper, the orphans of ended ones."""
    with suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass
        return {f"{pid} {' '.join(command_line(pid))}" for pid in child_pids(os.getpid())}
    return set()


def files() -> set[str]:
    return set(os.listdir(tempfile.gettempdir()))


KINDS = {"descriptor": descriptors, "thread": threads, "child": children, "file": files}


def snapshot() -> set[str]:
    return {f"{kind} {thing}" for kind, find in KINDS.items() for thing in find()}


def left_since(before: set[str]) -> set[str]:
    """Return what exists now and did not exist before the test.

    If there is anything, wait up to PATIENCE seconds until it has ended, and collect garbage meanwhile.
    """
    end, old = time.monotonic() + PATIENCE, cycle([*[1] * 20, 2])
    while (left := snapshot() - before) and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect(next(old))  # young generations, and every 21st time all of them
    return left


@pytest.fixture(scope="session")
def complaints() -> Iterator[list[str]]:
    """Collect what asyncio reports: tasks that are pending when their loop ends, and unhandled errors."""
    found: list[str] = []
    cancel_all_tasks = asyncio.runners._cancel_all_tasks

    def note_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        found.extend(f"task {task.get_coro()}" for task in asyncio.all_tasks(loop))
        cancel_all_tasks(loop)

    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda record: found.append(f"error {record.getMessage()} {record.exc_info}")
    logging.getLogger("asyncio").addHandler(listener)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.runners, "_cancel_all_tasks", note_and_cancel)
        yield found
    logging.getLogger("asyncio").removeHandler(listener)


@pytest.fixture(scope="session")
def kept_by_libraries() -> None:
    """Make uvloop create its signal pipe, which it keeps from its first loop on, before any test is checked.

    Also make this process the subreaper of its descendants, so that orphaned ones become its children.
    """
    uvloop.new_event_loop().close()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@pytest.fixture(autouse=True, scope="module")
def what_was_there_before_is_no_garbage() -> None:
    """Exclude all existing objects from garbage collection.

    Most objects belong to libraries; scanning them after every test would take longer than the tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_behind(
        complaints: list[str], kept_by_libraries: None, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    complaints.clear()
    before = snapshot()
    yield
    for record in caplog.get_records("call"):  # pytest keeps records, and their tracebacks keep frames alive
        record.exc_info, record.args = None, ()
    left = left_since(before)
    for thing in left:
        if thing.startswith("child "):
            os.kill(int(thing.split()[1]), signal.SIGKILL)
    if left or complaints:
        pytest.fail("left behind:\n  " + "\n  ".join([*sorted(left), *complaints]), pytrace=False)
