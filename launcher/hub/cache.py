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

REPOSITORY_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class CachedRepository:
    """One model's part of the cache."""

    cache_folder: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.cache_folder / self._folder_name

    @property
    def _folder_name(self) -> str:
        return f"{REPOSITORY_PREFIX}{self.name.replace('/', '--')}"

    def resolve_commit(self, revision: str) -> str:
        """Return the commit of a branch or tag when it was downloaded, or `revision` itself if there is no ref."""
        ref = self.folder / "refs" / revision
        return ref.read_text().strip() if ref.is_file() else revision

    def get_snapshot_folder(self, revision: str) -> Path:
        return self.folder / "snapshots" / self.resolve_commit(revision)

    def get_blob_path(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def get_partial_blob_path(self, etag: str) -> Path:
        return self.folder / "blobs" / f"{etag}.incomplete"

    def has_blob(self, etag: str, num_bytes: int) -> bool:
        blob = self.get_blob_path(etag)
        return blob.is_file() and blob.stat().st_size == num_bytes

    def count_downloaded_bytes(self, etag: str, num_bytes: int) -> int:
        """Return the number of bytes that are downloaded already."""
        if self.has_blob(etag, num_bytes):
            return num_bytes
        partial_blob = self.get_partial_blob_path(etag)
        return min(num_bytes, partial_blob.stat().st_size) if partial_blob.is_file() else 0

    def create_blobs_folder(self) -> None:
        """Create the folder of downloads if needed. Raises OSError if the cache cannot be written."""
        (self.folder / "blobs").mkdir(parents=True, exist_ok=True)

    @contextmanager
    def lock_blob(self, etag: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of a file's download, against threads and other programs; call `on_wait` before waiting."""
        path = self.cache_folder / ".locks" / self._folder_name / f"{etag}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(path, on_wait)
        try:
            yield
        finally:
            os.close(descriptor)

    def publish_snapshot(self, commit: str, etags: Mapping[str, str], revision: str) -> None:
        """Link all files of a commit into a snapshot. The ref is written last, so readers find complete snapshots."""
        folder = self.folder / "snapshots" / commit
        folder.mkdir(parents=True, exist_ok=True)
        for name, etag in etags.items():
            if not (folder / name).exists():
                (folder / name).parent.mkdir(exist_ok=True)
                up = "../" * (2 + name.count("/"))
                replace_atomically(folder / name, partial(Path.symlink_to, target=f"{up}blobs/{etag}"))
        if self.resolve_commit(revision) != commit:
            ref = self.folder / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            replace_atomically(ref, partial(Path.write_text, data=commit))


def lock_file(path: Path, on_wait: Callable[[], None]) -> int:
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


def replace_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file atomically, also with concurrent writers: readers find the old file or a complete new one."""
    temporary_path = path.with_name(f".{path.name}.{uuid4().hex}")
    write(temporary_path)
    temporary_path.replace(path)
