"""Adapter store: a content-addressed folder that several processes may share.

    versions/DIGEST/   the two immutable files of an adapter; the folder's mtime is its last use
    incoming/NAME/     an adapter that is being fetched, locked by the process that fetches it
    pins/NAME          digests in use by one process (launcher/adapters/pins.py)
    merged/KEY         the digest of a merge's result
    hub/               downloads, in the layout of the Hub's cache
    lock               held by any process while it adds a version or removes one

A folder is renamed into `versions` when it is complete, checked and synced, and renamed out of it to be removed. A
process that dies leaves incomplete folders only in `incoming`, where the next process removes them.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from launcher.adapters.contents import Contents, digest_of, read_contents
from launcher.adapters.errors import Kind, Refused
from launcher.adapters.pins import Pins
from launcher.hub.progress_bar import amount

ABANDONED = 24 * 3600 * 10**9  # nanoseconds after which an unused download is removed
FOLDERS = ("versions", "incoming", "pins", "merged", "hub")


class Version(NamedTuple):
    digest: str
    folder: Path
    contents: Contents


class Incoming(NamedTuple):
    folder: Path
    descriptor: int  # holds the folder's lock, also in a child process that inherits it


class Store:
    """Thread-safe store of adapters within a disk budget. `close` releases its pins."""

    def __init__(self, folder: Path, most_bytes: int, now: Callable[[], int] = time.time_ns) -> None:
        self.folder, self._most, self._now = folder, most_bytes, now
        self._contents: dict[str, Contents] = {}
        self._needed: dict[str, tuple[str, ...]] = {}
        self._sizes: dict[str, int] = {}  # bytes of versions, each measured once
        for name in FOLDERS:
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            self._pins = Pins(folder / "pins")
            self._clear_left()
            self._shrink(0)

    def close(self) -> None:
        self._pins.close()

    def find(self, digest: str) -> Version | None:
        """Return a stored version and mark it as used now, or return None."""
        folder = self.folder / "versions" / digest
        try:
            os.utime(folder, ns=(self._now(),) * 2)
            if digest not in self._contents:
                self._contents[digest] = read_contents(folder)
        except FileNotFoundError:
            self._contents.pop(digest, None)
            return None
        return Version(digest, folder, self._contents[digest])

    def pin(self, digests: Collection[str]) -> list[str]:
        """Replace the pins: these versions must not be evicted. Return the digests that are no longer stored."""
        return self._need(pinned=tuple(digests))

    @contextmanager
    def holding(self, digests: Collection[str]) -> Iterator[list[str]]:
        """Protect versions from eviction inside the context, in addition to the pins. Cannot be nested.

        Yields the digests that are no longer stored.
        """
        try:
            yield self._need(read=tuple(digests))
        finally:
            self._need(read=())

    def _need(self, **digests: tuple[str, ...]) -> list[str]:
        with self._locked():
            self._needed |= digests
            needed = dict.fromkeys(chain.from_iterable(self._needed.values()))
            self._pins.put(needed)
            return [digest for digest in needed if not (self.folder / "versions" / digest).is_dir()]

    @contextmanager
    def incoming(self) -> Iterator[Incoming]:
        """Yield an empty, locked folder, which is removed at the end unless it was published."""
        folder = self.folder / "incoming" / uuid4().hex
        with self._locked():
            folder.mkdir(mode=0o700)
            descriptor = held(folder)
        with released(descriptor):
            try:
                yield Incoming(folder, descriptor)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def check_room(self, size: int) -> None:
        """Make room on the disk for `size` more bytes before they are fetched. Raises Refused if that is impossible."""
        with self._locked():
            kept = self._kept()
            pinned = self._check_budget(kept, size)
            free = self._free()
            if size > free + sum(kept[digest] for digest in kept.keys() - pinned):
                raise Refused("no_room", f"the disk is too small: {amount(size)} are to come, and {amount(free)} are "
                                         f"free in {self.folder}")
            leavers = self._leavers(kept.keys() - pinned)
            while size > self._free() and (oldest := next(leavers, None)):
                self._remove(oldest)

    def publish(self, folder: Path) -> Version:
        """Move a folder from `incoming` to `versions`, unless that version is stored already.

        Raises ValueError if it is no adapter, Refused if there is no room, OSError.
        """
        contents = read_contents(folder)
        digest = digest_of(folder)
        write_through(folder)
        with self._locked():
            target = self.folder / "versions" / digest
            if not target.is_dir():
                self._shrink(contents.bytes)
                folder.rename(target)
                sync(target.parent)
            os.utime(target, ns=(self._now(),) * 2)
            self._contents[digest] = contents
        return Version(digest, target, contents)

    # -- under the lock

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with released(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _kept(self) -> dict[str, int]:
        """Return the bytes of each version. Sizes are cached, since a version never changes."""
        names, known = os.listdir(self.folder / "versions"), self._sizes
        self._sizes = {name: known[name] if name in known else self._size(name) for name in names}
        return self._sizes

    def _size(self, digest: str) -> int:
        return sum(file.stat().st_size for file in (self.folder / "versions" / digest).iterdir())

    def _leavers(self, digests: Iterable[str]) -> Iterator[str]:
        """Yield the candidates for eviction, least recently used first. Lazy: reads no mtime unless one is needed."""
        yield from sorted(digests, key=lambda digest: (self.folder / "versions" / digest).stat().st_mtime_ns)

    def _check_budget(self, kept: Mapping[str, int], size: int) -> set[str]:
        """Return the pinned digests. Raises Refused if `size` bytes do not fit into the budget beside them."""
        pinned = self._pins.everybodys()
        needed = sum(kept[digest] for digest in kept.keys() & pinned)
        if size and needed + size > self._most:
            kind: Kind = "no_room" if needed else "invalid"  # an adapter above the whole budget need not wait
            raise Refused(kind, f"an adapter of {amount(size)} does not fit: adapters may take "
                                f"{amount(self._most)} on disk (--adapter-disk-gb), and {amount(needed)} are in use")
        return pinned

    def _shrink(self, size: int) -> None:
        """Evict versions until `size` more bytes fit into the budget."""
        kept = self._kept()
        excess = sum(kept.values()) + size - self._most
        leavers = self._leavers(kept.keys() - self._check_budget(kept, size))
        while excess > 0 and (oldest := next(leavers, None)):
            self._remove(oldest)
            excess -= kept[oldest]

    def _remove(self, digest: str) -> None:
        """Delete a version, and its downloads in `hub`, which are hard links to the same files."""
        folder, grave = self.folder / "versions" / digest, self.folder / "incoming" / uuid4().hex
        linked = {file.st_ino for file in map(os.stat, folder.iterdir()) if file.st_nlink > 1}
        for blob, found in self._blobs() if linked else ():
            if found.st_ino in linked:
                blob.unlink(missing_ok=True)
        folder.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
        self._contents.pop(digest, None)

    def _clear_left(self) -> None:
        """Remove what dead processes left in `incoming`, and abandoned downloads."""
        for folder in (self.folder / "incoming").iterdir():
            with suppress(OSError), released(held(folder)):
                shutil.rmtree(folder, ignore_errors=True)
        for blob, found in self._blobs():
            if found.st_nlink == 1 and self._now() - found.st_mtime_ns > ABANDONED:
                blob.unlink(missing_ok=True)

    def _blobs(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the downloaded files with their status, except for files that another process removes meanwhile."""
        for blob in (self.folder / "hub").glob("models--*/blobs/*"):
            with suppress(FileNotFoundError):
                yield blob, blob.stat()

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free


def held(folder: Path) -> int:
    """Lock a folder and return the descriptor that holds the lock. Raises BlockingIOError if it is locked already."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def released(descriptor: int) -> Iterator[None]:
    """Close the descriptor at the end of the context, which also releases its lock."""
    try:
        yield
    finally:
        os.close(descriptor)


def write_through(folder: Path) -> None:
    """Sync the folder and its files to the disk."""
    for path in (*folder.iterdir(), folder):
        sync(path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with released(descriptor):
        os.fsync(descriptor)
