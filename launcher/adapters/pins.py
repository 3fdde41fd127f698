"""Which adapters must stay because a living process needs them, for all processes that share a store.

Each process has a file, one digest a line, and holds a lock on it that ends with the process however that ends. Whoever
writes or reads here holds the store's own lock. Knows not what a digest stands for.
"""

import fcntl
import os
from collections.abc import Collection
from pathlib import Path
from uuid import uuid4

LINE = 65  # bytes: a digest and the end of the line


class Pins:
    """Close it when nothing is needed any more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / uuid4().hex
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def put(self, digests: Collection[str]) -> None:
        """Instead of those before. Lines lie in the same places always, so a disk that is full leaves whole ones."""
        text = "".join(f"{digest}\n" for digest in digests).encode()
        place = 0
        while place < len(text):
            place += os.pwrite(self._descriptor, text[place:], place)
        os.ftruncate(self._descriptor, len(text))

    def everybodys(self) -> set[str]:
        """Ours and those of others. Files of processes that are gone go, too."""
        return {digest for path in self._folder.iterdir() for digest in held_digests(path)}

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def held_digests(path: Path) -> list[str]:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read()
            return [line.decode() for line in text.split(b"\n") if len(line) == LINE - 1]
    path.unlink()
    return []
