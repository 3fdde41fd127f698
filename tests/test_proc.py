"""Processes are listed while their threads come and go."""

import os
import subprocess
import sys
import threading

import pytest
from support.process_list import child_pids, command_line

WAIT = "import sys; sys.stdin.read()"


def test_threads_that_end_meanwhile_lose_no_child() -> None:
    """A thread may end between the listing of threads and the reading of its children."""
    looked = threading.Event()

    def come_and_go() -> None:
        while not looked.is_set():
            for thread in [threading.Thread(target=int) for _ in range(20)]:
                thread.start()
                thread.join()

    with subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE) as child:
        others = threading.Thread(target=come_and_go)
        others.start()
        try:
            assert all(child.pid in child_pids(os.getpid()) for _ in range(300))
        finally:
            looked.set()
            others.join()
        assert command_line(child.pid)[1:] == ["-c", WAIT]


def test_who_is_gone_has_no_command_and_no_list() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert command_line(child.pid) == []
    with pytest.raises(FileNotFoundError):
        child_pids(child.pid)
