"""Source `local`: adapters in folders below a root that the server's operator chose.

Names come from clients, so nothing outside the root may ever be opened: links are resolved first, and the resolved path
is then opened component by component from the root, without following links.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

from launcher.adapters.contents import CONFIG, FILES, PICKLED, WEIGHTS, check_names, check_sizes
from launcher.adapters.errors import Refused, called
from launcher.adapters.protocol import Fetch
from launcher.adapters.remote_version import Sighting

CLOSED = "the source `local` is closed: start the server with --adapter-root FOLDER"
PIECE = 2**20
SETTLED = 10**9  # nanoseconds; a file changed more recently may change again with the same timestamp


class Stamp(NamedTuple):
    """Status of a file; an equal stamp means that the file has not changed."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


class Opened(NamedTuple):
    path: tuple[str, ...]  # below the root
    descriptor: int
    stamp: Stamp


class LocalSource:
    is_far = False

    def __init__(self, root: str, now: Callable[[], int] = time.time_ns) -> None:
        self._root, self._now = root, now

    def tokens(self, asked: Fetch) -> tuple[str, ...]:  # noqa: ARG002 - files need no token
        return ("",)

    def nearby(self, asked: Fetch) -> None:
        """Return None: there is no cache besides the files themselves."""

    @contextmanager
    def look(self, asked: Fetch) -> Iterator[Sighting]:
        if not self._root:
            raise Refused("forbidden", CLOSED)
        with ExitStack() as open_files:
            root = descriptor(open_files, os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            files = {name: self._open(open_files, root, asked.name, name) for name in self._names(root, asked.name)}
            sizes = {name: file.stamp.size for name, file in files.items()}
            check_sizes(sizes)
            yield Sighting(sum(sizes.values()), partial(bring, root, files), self._stamp(asked, files))

    def _names(self, root: int, name: str) -> tuple[str, ...]:
        """Return the names of the adapter's files. Raises Refused if one is missing."""
        folder = self._below(name)
        if not is_folder(root, folder):
            raise Refused("missing", f"there is no adapter {called(name)} below the folder of --adapter-root")
        found = [file for file in (CONFIG, WEIGHTS, PICKLED) if self._is_there(root, name, file)]
        check_names(found, f"the folder {called(name)}")
        return FILES

    def _is_there(self, root: int, name: str, file: str) -> bool:
        with suppress(OSError, Refused):
            find(root, self._below(name, file))
            return True
        return False

    def _below(self, *names: str) -> tuple[str, ...]:
        """Return the components of the resolved path below the root. Raises Refused for a path outside of it."""
        if ".." in PurePath(names[0]).parts or "\0" in names[0]:
            raise outside(names[0])
        try:
            real = os.path.realpath(self._root)
            path = PurePath(os.path.join(real, self._without_root(names[0], real), *names[1:]))
            return PurePath(os.path.realpath(path)).relative_to(real).parts
        except (ValueError, OSError):
            raise outside(names[0]) from None

    def _without_root(self, name: str, real: str) -> PurePath:
        """Return a name relative to the root. Raises ValueError for an absolute name outside the root.

        An absolute name may begin with the root as configured or as resolved.
        """
        path = PurePath(name)
        if not path.is_absolute():
            return path
        start = next((start for start in (os.path.abspath(self._root), real) if path.is_relative_to(start)), real)
        return path.relative_to(start)

    def _open(self, open_files: ExitStack, root: int, name: str, file: str) -> Opened:
        path = self._below(name, file)
        try:
            found = descriptor(open_files, open_below(root, path))
        except OSError as error:
            raise Refused("missing", f"cannot open {file} of {called(name)}: {error.strerror}") from None
        about = os.fstat(found)
        if not stat.S_ISREG(about.st_mode):
            raise Refused("invalid", f"{file} of {called(name)} is no regular file")
        return Opened(path, found, stamp_of(about))

    def _stamp(self, asked: Fetch, files: dict[str, Opened]) -> tuple[Stamp, ...] | None:
        """Return the files' stamps, or None if equal stamps would not prove equal contents or must not be trusted."""
        settled = all(self._now() - max(file.stamp.modified, file.stamp.changed) > SETTLED for file in files.values())
        return tuple(file.stamp for file in files.values()) if settled and not asked.fresh else None


def bring(root: int, files: dict[str, Opened], folder: Path) -> None:
    for name, file in files.items():
        copy(file, folder / name)
    for name, file in files.items():
        if not file.stamp == stamp_of(os.fstat(file.descriptor)) == stamp_now(root, file.path):
            raise Refused("unreachable", f"{name} changed while it was read; try again")


def copy(file: Opened, target: Path) -> None:
    """Copy at most the size seen when it was opened: another process may still be appending to the file."""
    place, size = 0, file.stamp.size
    with target.open("wb", buffering=0) as written:
        while place < size and (piece := os.pread(file.descriptor, min(PIECE, size - place), place)):
            left = memoryview(piece)
            while left:
                left = left[written.write(left):]
            place += len(piece)


def stamp_of(about: os.stat_result) -> Stamp:
    return Stamp(about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def stamp_now(root: int, path: tuple[str, ...]) -> Stamp | None:
    try:
        return stamp_of(find(root, path))
    except OSError:
        return None


def find(root: int, path: tuple[str, ...]) -> os.stat_result:
    """Return the status of a file without opening it for reading (O_PATH)."""
    found = open_below(root, path, os.O_PATH)
    try:
        return os.fstat(found)
    finally:
        os.close(found)


def is_folder(root: int, path: tuple[str, ...]) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(find(root, path).st_mode)
    return False


def open_below(root: int, path: tuple[str, ...], how: int = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) -> int:
    """Open a path component by component without following links, even if one is replaced by a link meanwhile."""
    folder = os.dup(root)
    try:
        for step in path[:-1]:
            deeper = os.open(step, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = deeper
        return os.open(path[-1] if path else ".", how | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


def descriptor(open_files: ExitStack, number: int) -> int:
    """Return the descriptor, registered to be closed with `open_files`."""
    open_files.callback(os.close, number)
    return number


def outside(name: str) -> Refused:
    return Refused("forbidden", f"{called(name)} leads out of the folder of --adapter-root")
