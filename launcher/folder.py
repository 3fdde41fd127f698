"""The folder of one server's sockets: made, held while the server lives, cleared when its launcher was killed.

A launcher holds a lock on its folder, which ends with it however it ends. Knows nothing of what is kept there.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PREFIX, ANY = "weft-", "weft-????????"  # what tempfile makes of it
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
    """False: another launcher took it for one that was left, in the moment before we held it."""
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
    """Remove the folders whose launchers are gone. What cannot be removed stays, and so does what is not ours."""
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
