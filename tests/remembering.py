"""What workers found out about this machine is found out once for all tests of a run, as on a user's machine."""

import tempfile
from pathlib import Path

KEPT = "kept"  # the folder for temporary files has it from the beginning


def memory(rank: int) -> str:
    """The file in which workers of this rank keep it; ranks may be threads of one process."""
    return str(Path(tempfile.gettempdir(), KEPT, f"machine-{rank}.json"))
