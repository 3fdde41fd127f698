import os
import time
from array import array
from pathlib import Path

import pytest

from benchmarks.harness.processes import NotStarted, Server, child, children, cpu_seconds, machine_seconds

FAIL = "import json, os, sys; os.write(json.loads(sys.argv[1])['ready_fd'], b'failed no luck\\n')"
SERVE = ("import json, os, sys; told = json.loads(sys.argv[1]); os.write(told['ready_fd'], "
         "b'progress warm-up 0 0\\nready 7 {}\\n'); "
         "os.read(told['parent_fd'], 1)")


def test_the_clock_of_a_process_is_that_of_its_cpu_time() -> None:
    before = time.process_time()
    assert before <= cpu_seconds(os.getpid()) <= time.process_time()


def test_a_machine_has_worked_at_least_as_long_as_this_process() -> None:
    assert machine_seconds() > time.process_time() - 0.1


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "steps").write_bytes(array("d", [1.0, 1.5]).tobytes())
    assert list(Server(1, 2, 3, tmp_path / "steps").step_times()) == [1.0, 1.5]


def test_a_child_lives_as_long_as_the_block() -> None:
    with child(("-c", SERVE), {}) as (process_id, said):
        assert said == "7"
        assert Path(f"/proc/{process_id}").exists()
    assert not Path(f"/proc/{process_id}").exists()


def test_a_child_that_cannot_start_says_why() -> None:
    with pytest.raises(NotStarted, match="did not start: no luck"), child(("-c", FAIL), {}):
        pass


def test_a_child_that_dies_at_once_is_noticed() -> None:
    with pytest.raises(NotStarted, match="it ended"), child(("-c", ""), {}):
        pass


def test_children_may_wait_for_each_other(tmp_path: Path) -> None:
    """Each child opens one end of a named pipe, which blocks until both ends are open."""
    os.mkfifo(pipe := tmp_path / "pipe")
    meet = f"import json, os, sys; order = json.loads(sys.argv[1]); open({str(pipe)!r}, order['mode'])\n{SERVE}"
    with children(("-c", meet), [{"mode": "rb"}, {"mode": "wb"}]):
        pass


def test_who_waits_for_a_child_that_failed_is_ended() -> None:
    program = f"import json, sys, threading; json.loads(sys.argv[1])['fails'] or threading.Event().wait()\n{FAIL}"
    with (pytest.raises(NotStarted, match="no luck"),
          children(("-c", program), [{"fails": False}, {"fails": True}])):
        pass
