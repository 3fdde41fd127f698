"""Adapter store: a content-addressed folder that several processes may share.

    versions/DIGEST/   the two immutable files of an adapter; the folder's mtime is its last use
    incoming/NAME/     an adapter that is being fetched, locked by the process that fetches it
    pins/NAME          digests in use by one process (launcher/adapters/eviction_pins.py)
    merged/KEY         the digest of a merge's result
    hub/               downloads, in the layout of the Hub's cache
    lock               held by any process while it adds a version or removes one

A folder is renamed into `versions` when it is complete, checked and synced, and renamed out of it to be removed. A
process that dies leaves incomplete folders only in `create_incoming_folder`, where the next process removes them.
"""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from launcher.adapters.adapter_files import AdapterFileSummary, compute_digest, read_adapter_metadata
from launcher.adapters.errors import AdapterError, AdapterErrorKind
from launcher.adapters.eviction_pins import ProcessPinFile
from launcher.console_output import format_bytes

ABANDONED_AFTER_NANOSECONDS = 24 * 3600 * 10**9  # nanoseconds after which an unused download is removed
STORE_SUBFOLDERS = ("versions", "incoming", "pins", "merged", "hub")

logger = logging.getLogger(__name__)


class AdapterVersion(NamedTuple):
    """Adapter in the store, identified by the digest of its files."""

    digest: str
    folder: Path
    contents: AdapterFileSummary


class IncomingFolder(NamedTuple):
    """Locked folder for an adapter that is being fetched or merged."""

    folder: Path
    lock_descriptor: int  # holds the folder's lock, also in a child process that inherits it


class AdapterVersionStore:
    """Thread-safe store of adapters within a disk budget. `close` releases its pins."""

    def __init__(self, folder: Path, max_bytes: int, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.folder, self._max_bytes, self._clock_ns = folder, max_bytes, clock_ns
        self._contents_by_digest: dict[str, AdapterFileSummary] = {}
        self._protected_digests: dict[str, tuple[str, ...]] = {}
        self._bytes_by_digest: dict[str, int] = {}  # bytes of versions, each measured once
        self._reserved_bytes = 0  # of adapters that this process is fetching or merging
        for name in STORE_SUBFOLDERS:
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock_store():
            self._pin_file = ProcessPinFile(folder / "pins")
            self._remove_abandoned_files()
            self._evict_to_fit(0)

    def close(self) -> None:
        self._pin_file.close()

    def find_version(self, digest: str) -> AdapterVersion | None:
        """Return a stored version and mark it as used now, or return None."""
        folder = self.folder / "versions" / digest
        try:
            os.utime(folder, ns=(self._clock_ns(),) * 2)
            if digest not in self._contents_by_digest:
                self._contents_by_digest[digest] = read_adapter_metadata(folder)
        except FileNotFoundError:
            self._contents_by_digest.pop(digest, None)
            return None
        return AdapterVersion(digest, folder, self._contents_by_digest[digest])

    def replace_pins(self, digests: Collection[str]) -> list[str]:
        """Replace the pins: these versions must not be evicted. Return the digests that are no longer stored."""
        return self._update_protected(pinned=tuple(digests))

    @contextmanager
    def protect_versions(self, digests: Collection[str]) -> Iterator[list[str]]:
        """Protect versions from eviction inside the context, in addition to the pins. Cannot be nested.

        Yields the digests that are no longer stored.
        """
        try:
            yield self._update_protected(read=tuple(digests))
        finally:
            self._update_protected(read=())

    def _update_protected(self, **digests_by_reason: tuple[str, ...]) -> list[str]:
        with self._lock_store():
            self._protected_digests |= digests_by_reason
            protected = dict.fromkeys(chain.from_iterable(self._protected_digests.values()))
            self._pin_file.write_pins(protected)
            return [digest for digest in protected if not (self.folder / "versions" / digest).is_dir()]

    @contextmanager
    def create_incoming_folder(self) -> Iterator[IncomingFolder]:
        """Yield an empty, locked folder, which is removed at the end unless it was published."""
        folder = self.folder / "incoming" / uuid4().hex
        with self._lock_store():
            folder.mkdir(mode=0o700)
            descriptor = lock_folder(folder)
        with closing_descriptor(descriptor):
            try:
                yield IncomingFolder(folder, descriptor)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def reserve_room(self, num_bytes: int) -> Iterator[None]:
        """Make room for `num_bytes` more bytes, which are fetched inside the context, beside those for which other
        threads have made some. Raises AdapterError if that is impossible."""
        with self._lock_store():
            self._make_room(num_bytes)
            self._reserved_bytes += num_bytes
        try:
            yield
        finally:
            with self._lock_store():
                self._reserved_bytes -= num_bytes

    def publish_version(self, folder: Path) -> AdapterVersion:
        """Move a folder from `incoming` to `versions`, unless that version is stored already.

        Raises ValueError if it is no adapter, AdapterError if there is no room, OSError.
        """
        contents = read_adapter_metadata(folder)
        digest = compute_digest(folder)
        fsync_folder(folder)
        with self._lock_store():
            target = self.folder / "versions" / digest
            if not target.is_dir():
                self._evict_to_fit(contents.file_bytes)
                folder.rename(target)
                fsync_path(target.parent)
            os.utime(target, ns=(self._clock_ns(),) * 2)
            self._contents_by_digest[digest] = contents
        return AdapterVersion(digest, target, contents)

    # -- under the lock

    def _make_room(self, num_bytes: int) -> None:
        """Evict versions until the disk and the budget have room for `num_bytes` more bytes."""
        bytes_by_digest = self._measure_versions()
        pinned = self._read_pins_and_check_budget(bytes_by_digest, num_bytes, self._reserved_bytes)
        free_bytes = self._get_free_disk_bytes()
        if num_bytes > free_bytes + sum(bytes_by_digest[digest] for digest in bytes_by_digest.keys() - pinned):
            reason = (f"the disk is too small: {format_bytes(num_bytes)} are to come, and {format_bytes(free_bytes)} "
                      "are free")
            logger.warning("%s in %s", reason, self.folder)
            raise AdapterError("no_room", reason)
        eviction_candidates = self._order_eviction_candidates(bytes_by_digest.keys() - pinned)
        while num_bytes > self._get_free_disk_bytes() and (oldest := next(eviction_candidates, None)):
            self._delete_version(oldest)
        self._evict_to_fit(num_bytes, self._reserved_bytes)

    @contextmanager
    def _lock_store(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with closing_descriptor(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _measure_versions(self) -> dict[str, int]:
        """Return the bytes of each version. Sizes are cached, since a version never changes."""
        names, known_sizes = os.listdir(self.folder / "versions"), self._bytes_by_digest
        self._bytes_by_digest = {name: known_sizes[name] if name in known_sizes else self._measure_version(name)
                                 for name in names}
        return self._bytes_by_digest

    def _measure_version(self, digest: str) -> int:
        return sum(file.stat().st_size for file in (self.folder / "versions" / digest).iterdir())

    def _order_eviction_candidates(self, digests: Iterable[str]) -> Iterator[str]:
        """Yield the candidates for eviction, least recently used first. Lazy: reads no mtime unless one is needed."""
        yield from sorted(digests, key=lambda digest: (self.folder / "versions" / digest).stat().st_mtime_ns)

    def _read_pins_and_check_budget(self, bytes_by_digest: Mapping[str, int], num_bytes: int,
                                    num_reserved_bytes: int = 0) -> set[str]:
        """Return the pinned digests. Raises AdapterError if `num_bytes` do not fit into the budget beside them and the
        reserved bytes."""
        pinned = self._pin_file.read_pins_of_all_processes()
        used_bytes = num_reserved_bytes + sum(bytes_by_digest[digest] for digest in bytes_by_digest.keys() & pinned)
        if num_bytes and used_bytes + num_bytes > self._max_bytes:
            # an adapter above the whole budget need not wait
            kind: AdapterErrorKind = "no_room" if num_bytes <= self._max_bytes else "invalid"
            raise AdapterError(kind, f"an adapter of {format_bytes(num_bytes)} does not fit: adapters may "
                               f"take " f"{format_bytes(self._max_bytes)} on disk (--adapter-disk-gb), and "
                               f"{format_bytes(used_bytes)} are in use or being fetched")
        return pinned

    def _evict_to_fit(self, num_bytes: int, num_reserved_bytes: int = 0) -> None:
        """Evict versions until `num_bytes` more bytes fit into the budget beside the reserved ones."""
        bytes_by_digest = self._measure_versions()
        excess_bytes = sum(bytes_by_digest.values()) + num_reserved_bytes + num_bytes - self._max_bytes
        eviction_candidates = self._order_eviction_candidates(
            bytes_by_digest.keys() - self._read_pins_and_check_budget(bytes_by_digest, num_bytes, num_reserved_bytes))
        while excess_bytes > 0 and (oldest := next(eviction_candidates, None)):
            self._delete_version(oldest)
            excess_bytes -= bytes_by_digest[oldest]

    def _delete_version(self, digest: str) -> None:
        """Delete a version, and its downloads in `hub`, which are hard links to the same files."""
        folder, trash_folder = self.folder / "versions" / digest, self.folder / "incoming" / uuid4().hex
        linked_inodes = {file.st_ino for file in map(os.stat, folder.iterdir()) if file.st_nlink > 1}
        for blob, status in self._iterate_downloaded_blobs() if linked_inodes else ():
            if status.st_ino in linked_inodes:
                blob.unlink(missing_ok=True)
        folder.rename(trash_folder)
        shutil.rmtree(trash_folder, ignore_errors=True)
        self._contents_by_digest.pop(digest, None)

    def _remove_abandoned_files(self) -> None:
        """Remove what dead processes left in `incoming`, and abandoned downloads."""
        for folder in (self.folder / "incoming").iterdir():
            with suppress(OSError), closing_descriptor(lock_folder(folder)):
                shutil.rmtree(folder, ignore_errors=True)
        for blob, status in self._iterate_downloaded_blobs():
            if status.st_nlink == 1 and self._clock_ns() - status.st_mtime_ns > ABANDONED_AFTER_NANOSECONDS:
                blob.unlink(missing_ok=True)

    def _iterate_downloaded_blobs(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the downloaded files with their status, except for files that another process removes meanwhile."""
        for blob in (self.folder / "hub").glob("models--*/blobs/*"):
            with suppress(FileNotFoundError):
                yield blob, blob.stat()

    def _get_free_disk_bytes(self) -> int:
        return shutil.disk_usage(self.folder).free


def lock_folder(folder: Path) -> int:
    """Lock a folder and return the descriptor that holds the lock. Raises BlockingIOError if it is locked already."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[None]:
    """Close the descriptor at the end of the context, which also releases its lock."""
    try:
        yield
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Sync the folder and its files to the disk."""
    for path in (*folder.iterdir(), folder):
        fsync_path(path)


def fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with closing_descriptor(descriptor):
        os.fsync(descriptor)
