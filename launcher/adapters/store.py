"""The folder of adapters: complete ones under the names of their contents, and others on their way there.

    versions/DIGEST/   the two files of one, which never change; its time is when it was last asked for
    incoming/NAME/     one that is being brought, held by whoever brings it
    pins/NAME          what a process needs (launcher/adapters/pins.py)
    merged/KEY         the digest of what a merge gave
    hub/               downloads, as the Hub's cache has them
    lock               held while something enters versions or leaves it, by any process

A folder enters `versions` by one renaming, once all of it is on the disk and checked, and leaves it by another: whoever
dies meanwhile leaves something in `incoming`, which the next one removes. Knows not where adapters come from.
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
from launcher.adapters.pins import Pins
from launcher.adapters.refused import Kind, Refused
from launcher.meter import amount

ABANDONED = 24 * 3600 * 10**9  # nanoseconds after which nobody goes on with a download
FOLDERS = ("versions", "incoming", "pins", "merged", "hub")


class Version(NamedTuple):
    digest: str
    folder: Path
    contents: Contents


class Incoming(NamedTuple):
    folder: Path
    descriptor: int  # who inherits it holds the folder, too


class Store:
    """Close it at the end. Any thread may use it."""

    def __init__(self, folder: Path, most_bytes: int, now: Callable[[], int] = time.time_ns) -> None:
        self.folder, self._most, self._now = folder, most_bytes, now
        self._contents: dict[str, Contents] = {}
        self._needed: dict[str, tuple[str, ...]] = {}
        self._sizes: dict[str, int] = {}  # of versions, as far as they were looked at
        for name in FOLDERS:
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            self._pins = Pins(folder / "pins")
            self._clear_left()
            self._shrink(0)

    def close(self) -> None:
        self._pins.close()

    def find(self, digest: str) -> Version | None:
        """One that is here; it has been asked for now."""
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
        """These must stay, and of those before only these. Gives those that are gone already."""
        return self._need(pinned=tuple(digests))

    @contextmanager
    def holding(self, digests: Collection[str]) -> Iterator[list[str]]:
        """These stay meanwhile, whoever else needs them. Once at a time. Gives those that are gone already."""
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
        """An empty folder. What is not published from there is gone at the end."""
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
        """Whether so much more may come, before it does. Raises Refused."""
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
        """From `incoming`. Raises ValueError for what is no adapter, Refused if there is no room, OSError."""
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
        """The bytes of each version. What stands in one never changes."""
        names, known = os.listdir(self.folder / "versions"), self._sizes
        self._sizes = {name: known[name] if name in known else self._size(name) for name in names}
        return self._sizes

    def _size(self, digest: str) -> int:
        return sum(file.stat().st_size for file in (self.folder / "versions" / digest).iterdir())

    def _leavers(self, digests: Iterable[str]) -> Iterator[str]:
        """The one that was not asked for the longest first. Nothing is looked at before somebody has to leave."""
        yield from sorted(digests, key=lambda digest: (self.folder / "versions" / digest).stat().st_mtime_ns)

    def _check_budget(self, kept: Mapping[str, int], size: int) -> set[str]:
        """What is pinned, if there is room beside it."""
        pinned = self._pins.everybodys()
        needed = sum(kept[digest] for digest in kept.keys() & pinned)
        if size and needed + size > self._most:
            kind: Kind = "no_room" if needed else "invalid"  # no waiting helps who is too large by itself
            raise Refused(kind, f"an adapter of {amount(size)} does not fit: adapters may take "
                                f"{amount(self._most)} on disk (--adapter-disk-gb), and {amount(needed)} are in use")
        return pinned

    def _shrink(self, size: int) -> None:
        """Until so much more is within the budget."""
        kept = self._kept()
        excess = sum(kept.values()) + size - self._most
        leavers = self._leavers(kept.keys() - self._check_budget(kept, size))
        while excess > 0 and (oldest := next(leavers, None)):
            self._remove(oldest)
            excess -= kept[oldest]

    def _remove(self, digest: str) -> None:
        """Its downloads, too, which are the same files under other names."""
        folder, grave = self.folder / "versions" / digest, self.folder / "incoming" / uuid4().hex
        linked = {file.st_ino for file in map(os.stat, folder.iterdir()) if file.st_nlink > 1}
        for blob, found in self._blobs() if linked else ():
            if found.st_ino in linked:
                blob.unlink(missing_ok=True)
        folder.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
        self._contents.pop(digest, None)

    def _clear_left(self) -> None:
        """By processes that are gone."""
        for folder in (self.folder / "incoming").iterdir():
            with suppress(OSError), released(held(folder)):
                shutil.rmtree(folder, ignore_errors=True)
        for blob, found in self._blobs():
            if found.st_nlink == 1 and self._now() - found.st_mtime_ns > ABANDONED:
                blob.unlink(missing_ok=True)

    def _blobs(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Others may be finishing theirs."""
        for blob in (self.folder / "hub").glob("models--*/blobs/*"):
            with suppress(FileNotFoundError):
                yield blob, blob.stat()

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free


def held(folder: Path) -> int:
    """The descriptor that holds it. Raises BlockingIOError if somebody else does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def released(descriptor: int) -> Iterator[None]:
    """At the end."""
    try:
        yield
    finally:
        os.close(descriptor)


def write_through(folder: Path) -> None:
    """All of it is on the disk."""
    for path in (*folder.iterdir(), folder):
        sync(path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with released(descriptor):
        os.fsync(descriptor)
