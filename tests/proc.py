"""What Linux tells of processes, while some of them and of their threads come to an end."""

from pathlib import Path


def child_pids(parent: int) -> list[int]:
    """In the order in which they were started. A thread that ends leaves its children to another: looked at anew."""
    while True:
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            return sorted(int(pid) for task in tasks for pid in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            if not Path(f"/proc/{parent}").exists():
                raise


def command_line(pid: int) -> list[str]:
    """Of a process that has ended: nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []
