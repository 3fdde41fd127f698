"""Processes are listed while their threads come and go."""

import os
import subprocess
import sys
import threading

import pytest
from support.process_list import list_child_pids, read_command_line

WAITING_PROGRAM = "import sys; sys.stdin.read()"


def test_children_are_listed_while_threads_start_and_end() -> None:
    """A thread may end between the listing of threads and the reading of its children."""
    is_done = threading.Event()

    def start_and_join_threads() -> None:
        while not is_done.is_set():
            for thread in [threading.Thread(target=int) for _ in range(20)]:
                thread.start()
                thread.join()

    with subprocess.Popen([sys.executable, "-c", WAITING_PROGRAM], stdin=subprocess.PIPE) as child:
        others = threading.Thread(target=start_and_join_threads)
        others.start()
        try:
            assert all(child.pid in list_child_pids(os.getpid()) for _ in range(300))
        finally:
            is_done.set()
            others.join()
        assert read_command_line(child.pid)[1:] == ["-c", WAITING_PROGRAM]


def test_ended_process_has_no_command_line_and_no_children() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert read_command_line(child.pid) == []
    with pytest.raises(FileNotFoundError):
        list_child_pids(child.pid)
