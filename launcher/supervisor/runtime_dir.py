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

FOLDER_PREFIX, FOLDER_PATTERN = "weft-", "weft-????????"  # tempfile appends eight characters
OWN_FILE_PATTERNS = ("shard-*.sock", "meeting-*", "progress-*", "address-*")


@contextmanager
def create_runtime_folder() -> Iterator[str]:
    remove_abandoned_folders(Path(tempfile.gettempdir()))
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX))
        while not opened.enter_context(lock_runtime_folder(folder)):
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX))
        yield folder


@contextmanager
def lock_runtime_folder(folder: str) -> Iterator[bool]:
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


def remove_abandoned_folders(temp_folder: Path) -> None:
    """Remove the folders of launchers that have ended, except those of other users and those that cannot be removed."""
    for folder in temp_folder.glob(FOLDER_PATTERN):
        with suppress(OSError):
            remove_folder_if_abandoned(folder)


def remove_folder_if_abandoned(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in (path for pattern in OWN_FILE_PATTERNS for path in folder.glob(pattern)):
            path.unlink()
        folder.rmdir()
    finally:
        os.close(descriptor)
