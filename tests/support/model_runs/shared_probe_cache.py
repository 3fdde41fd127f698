"""Probe results of workers about this machine, shared by all tests of a run as on a user's machine."""

import tempfile
from pathlib import Path

SHARED_FOLDER_NAME = "kept"  # subfolder of the temporary folder, created by conftest.py


def get_probe_cache_path(rank: int) -> str:
    """Return the file with the probe results of this rank; one per rank, since ranks may be threads of a process."""
    return str(Path(tempfile.gettempdir(), SHARED_FOLDER_NAME, f"machine-{rank}.json"))
