"""Pinned adapters, which must not be evicted because a process that shares the store uses them.

Each process has a file with one digest per line and holds a lock on it, which the kernel releases however the process
ends. Callers of this module hold the store's lock.
"""

import fcntl
import os
from collections.abc import Collection
from pathlib import Path
from uuid import uuid4

LINE_BYTES = 65  # bytes: a digest and the end of the line


class ProcessPinFile:
    """Pins of this process, in a locked file that `close` removes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / uuid4().hex
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def write_pins(self, digests: Collection[str]) -> None:
        """Replace all pins. Lines have fixed offsets, so that a write cut short by a full disk leaves valid lines."""
        text = "".join(f"{digest}\n" for digest in digests).encode()
        offset = 0
        while offset < len(text):
            offset += os.pwrite(self._descriptor, text[offset:], offset)
        os.ftruncate(self._descriptor, len(text))

    def read_pins_of_all_processes(self) -> set[str]:
        """Return the pins of all living processes, and remove the files of those that have ended."""
        return {digest for path in self._folder.iterdir() for digest in read_pins_or_remove_stale(path)}

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def read_pins_or_remove_stale(path: Path) -> list[str]:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read()
            return [line.decode() for line in text.split(b"\n") if len(line) == LINE_BYTES - 1]
    path.unlink()
    return []
