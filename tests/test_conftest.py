"""What conftest.py promises: processes of pytest share no folder, and what a test or a file leaves behind is found."""

import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import conftest
import pytest
from support.servers.weft_process import find_held_resources


def test_tmp_path_is_in_a_folder_of_this_process(tmp_path: Path) -> None:
    """pytest's own folder is shared by all of a user's processes: two that ended at once failed over its leftovers."""
    assert not [folder for folder in tmp_path.parents if folder.name.startswith("pytest-of-")]
    assert Path(tempfile.gettempdir()) not in tmp_path.parents  # leftovers in there fail the test


@contextmanager
def leak_thread() -> Iterator[None]:
    event = threading.Event()
    (thread := threading.Thread(target=event.wait)).start()
    yield
    event.set()
    thread.join()


@contextmanager
def leak_file() -> Iterator[None]:
    with tempfile.TemporaryDirectory():
        yield


@contextmanager
def leak_child() -> Iterator[None]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield
        process.kill()


@pytest.mark.parametrize(("kind", "leak"), [
    ("descriptor", socket.socket), ("thread", leak_thread), ("child", leak_child), ("file", leak_file)])
def test_what_is_left_behind_is_found(
        monkeypatch: pytest.MonkeyPatch, kind: str, leak: Callable[[], AbstractContextManager[object]]) -> None:
    monkeypatch.setattr(conftest, "LEFTOVER_TIMEOUT_SECONDS", 0.05)
    before = conftest.snapshot_resources()
    with leak():
        assert [leftover for leftover in conftest.wait_for_leftovers(before) if leftover.startswith(f"{kind} ")]
    assert not conftest.wait_for_leftovers(before)


def test_held_blocks_and_requests_are_found_on_the_page_of_metrics() -> None:
    page = 'tgi_cache_blocks{state="held"} 0\ntgi_cache_blocks{state="kept"} 5\ntgi_queue_size 0\n'
    assert find_held_resources(page) == []
    assert find_held_resources(page.replace('held"} 0', 'held"} 3')) == ['tgi_cache_blocks{state="held"} 3']
