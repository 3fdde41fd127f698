"""The Hub's cache, as all its clients keep it: what is there, and how a download becomes part of it.

    models--org--name/blobs/ETAG             files, under the name that the Hub gives to their content
    models--org--name/blobs/ETAG.incomplete  the beginning of one
    models--org--name/snapshots/COMMIT/      links to files, under their own names
    models--org--name/refs/REVISION          the commit that a branch or tag stood for
    .locks/models--org--name/ETAG.lock       held by whoever downloads that file

Knows no network, and not which files a model should have.
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
        """What the revision stood for when it was downloaded."""
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
        """Bytes that need not be downloaded."""
        if self.has(etag, size):
            return size
        begun = self.beginning(etag)
        return min(size, begun.stat().st_size) if begun.is_file() else 0

    def prepare(self) -> None:
        """The cache is made when it is first needed; raises OSError if it cannot be written."""
        (self.folder / "blobs").mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self, etag: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Nobody else downloads this file meanwhile, in this program or another; `on_wait` if somebody does now."""
        path = self.cache / ".locks" / self._word / f"{etag}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock(path, on_wait)
        try:
            yield
        finally:
            os.close(descriptor)

    def publish(self, commit: str, etags: Mapping[str, str], revision: str) -> None:
        """All files of a commit, each by its name, become a snapshot. What reads the cache sees the revision last."""
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
    """Other clients remove such files when they are done with them: a lock on one without a name guards nothing."""
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
    """What stood there is replaced at once: nobody finds half of it, or nothing. Others may do the same meanwhile."""
    new = path.with_name(f".{path.name}.{uuid4().hex}")
    make(new)
    new.replace(path)
