"""Temporary folder of one server, for its sockets and progress files.

The launcher holds a lock on the folder, which the kernel releases however the launcher ends. The next launcher removes
folders that are not locked.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PREFIX, ANY = "weft-", "weft-????????"  # tempfile appends eight characters
OURS = ("shard-*.sock", "meeting-*", "progress-*")


@contextmanager
def server_folder() -> Iterator[str]:
    clear_left(Path(tempfile.gettempdir()))
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        while not opened.enter_context(held(folder)):
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        yield folder


@contextmanager
def held(folder: str) -> Iterator[bool]:
    """Lock a folder. Yields False if another launcher removed it as abandoned before it was locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield os.path.exists(folder)
    finally:
        os.close(descriptor)


def clear_left(place: Path) -> None:
    """Remove the folders of launchers that have ended, except those of other users and those that cannot be removed."""
    for folder in place.glob(ANY):
        with suppress(OSError):
            clear(folder)


def clear(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in (path for pattern in OURS for path in folder.glob(pattern)):
            path.unlink()
        folder.rmdir()
    finally:
        os.close(descriptor)
