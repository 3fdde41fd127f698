"""The Hub's cache on disk, in the layout that all its clients share.

    models--org--name/blobs/ETAG             files, named by the ETag of their content
    models--org--name/blobs/ETAG.incomplete  a partial download
    models--org--name/snapshots/COMMIT/      links to files, under their own names
    models--org--name/refs/REVISION          the commit of a branch or tag when it was downloaded
    .locks/models--org--name/ETAG.lock       held by the process that downloads the file
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Kept:
    """One model's part of the cache."""

    cache: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.cache / self._word

    @property
    def _word(self) -> str:
        return f"models--{self.name.replace('/', '--')}"

    def commit(self, revision: str) -> str:
        """Return the commit of a branch or tag when it was downloaded, or `revision` itself if there is no ref."""
        ref = self.folder / "refs" / revision
        return ref.read_text().strip() if ref.is_file() else revision

    def snapshot(self, revision: str) -> Path:
        return self.folder / "snapshots" / self.commit(revision)

    def blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def beginning(self, etag: str) -> Path:
        return self.folder / "blobs" / f"{etag}.incomplete"

    def has(self, etag: str, size: int) -> bool:
        blob = self.blob(etag)
        return blob.is_file() and blob.stat().st_size == size

    def size_so_far(self, etag: str, size: int) -> int:
        """Return the number of bytes that are downloaded already."""
        if self.has(etag, size):
            return size
        begun = self.beginning(etag)
        return min(size, begun.stat().st_size) if begun.is_file() else 0

    def prepare(self) -> None:
        """Create the folder of downloads if needed. Raises OSError if the cache cannot be written."""
        (self.folder / "blobs").mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self, etag: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of a file's download, against threads and other programs; call `on_wait` before waiting."""
        path = self.cache / ".locks" / self._word / f"{etag}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock(path, on_wait)
        try:
            yield
        finally:
            os.close(descriptor)

    def publish(self, commit: str, etags: Mapping[str, str], revision: str) -> None:
        """Link all files of a commit into a snapshot. The ref is written last, so readers find complete snapshots."""
        folder = self.folder / "snapshots" / commit
        folder.mkdir(parents=True, exist_ok=True)
        for name, etag in etags.items():
            if not (folder / name).exists():
                (folder / name).parent.mkdir(exist_ok=True)
                up = "../" * (2 + name.count("/"))
                put(folder / name, partial(Path.symlink_to, target=f"{up}blobs/{etag}"))
        if self.commit(revision) != commit:
            ref = self.folder / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            put(ref, partial(Path.write_text, data=commit))


def lock(path: Path, on_wait: Callable[[], None]) -> int:
    """Lock a file and return its descriptor.

    Retried if another client has removed the file meanwhile: a lock on an unlinked file protects nothing.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def put(path: Path, make: Callable[[Path], object]) -> None:
    """Replace a file atomically, also with concurrent writers: readers find the old file or a complete new one."""
    new = path.with_name(f".{path.name}.{uuid4().hex}")
    make(new)
    new.replace(path)
