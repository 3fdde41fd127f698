"""Child processes and command lines from /proc, robust against processes and threads that end meanwhile."""

from pathlib import Path


def list_child_pids(parent_pid: int) -> list[int]:
    """Return the child processes in the order of their start.

    A thread that ends passes its children to another thread, so the listing is repeated in that case.
    """
    while True:
        try:
            tasks = list(Path(f"/proc/{parent_pid}/task").iterdir())
            return sorted(int(pid) for task in tasks for pid in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            if not Path(f"/proc/{parent_pid}").exists():
                raise


def read_command_line(pid: int) -> list[str]:
    """Return the command line of a process, empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []
