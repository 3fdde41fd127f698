"""Download of one file from the Hub into the cache: resumed, checked, and visible only when complete."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from io import FileIO
from threading import Event
from typing import Any

from launcher.hub.cache import Kept
from launcher.hub.client import PIECE, Hub, RemoteFile, Unreachable
from launcher.hub.retry_policy import Patience

SHA256, GIT = 64, 40  # digits


class NotDownloaded(Exception):
    """The download failed; the message is the one line that the user reads."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Downloads of the files of one commit.

    `count` is called with numbers of received bytes, negative if some are discarded, and `on_wait` before waiting for
    another process that downloads the same file.
    """

    hub: Hub
    kept: Kept
    commit: str
    stopped: Event
    patience: Callable[[], Patience]
    on_wait: Callable[[], None]
    count: Callable[[int], None]

    def bring(self, file: RemoteFile) -> None:
        """Download the file into the cache, if it is not there.

        A concurrent download by another process is waited for, and its bytes are counted.
        """
        before = self.kept.size_so_far(file.etag, file.size)
        if self.kept.has(file.etag, file.size):
            return
        with self.kept.locked(file.etag, self.on_wait):
            now = self.kept.size_so_far(file.etag, file.size)
            self.count(now - before)
            if not self.kept.has(file.etag, file.size):
                self._complete(file)

    def _complete(self, file: RemoteFile) -> None:
        path = self.kept.beginning(file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as target:  # unbuffered: received bytes survive a kill
            content = Content(target, file, self.count)
            self._receive(file, content)
            os.fsync(target.fileno())
        if wrong := content.wrong():
            path.unlink()
            raise NotDownloaded(f"{file.name} of {self.hub.name} arrived damaged ({wrong}) and was removed; start "
                                "again to download it anew")
        path.replace(self.kept.blob(file.etag))

    def _receive(self, file: RemoteFile, content: "Content") -> None:
        patience = self.patience()
        while content.size < file.size:
            try:
                with closing(self.hub.read(file, self.commit, content.size)) as pieces:
                    self._write(pieces, content, patience)
            except Unreachable as error:
                patience.wait(error)

    def _write(self, pieces: Iterator[tuple[int, bytes]], content: "Content", patience: Patience) -> None:
        for place, piece in pieces:
            if self.stopped.is_set():
                raise NotDownloaded(f"the download of {content.file.name} was stopped")
            content.write(place, piece)
            patience.renew()
        if content.size < content.file.size:
            raise Unreachable(f"{self.hub.endpoint} sent {content.size:,} of {content.file.size:,} bytes of "
                              f"{content.file.name}", heard=True)


class Content:
    """Partial download of a file, and its checksum so far."""

    def __init__(self, target: FileIO, file: RemoteFile, count: Callable[[int], None]) -> None:
        self.file = file
        self.size = 0
        self._target, self._count = target, count
        self._digest = new_digest(file)
        self._read_what_is_there()

    def write(self, place: int, piece: bytes) -> None:
        if place != self.size:
            self._begin_again()
        left = memoryview(piece)
        while left:
            left = left[self._target.write(left):]
        self._take(piece)
        self._count(len(piece))

    def wrong(self) -> str:
        """Return a description of the damage, or "". A file whose ETag is no checksum is checked by size only."""
        if self.size != self.file.size:
            return f"{self.size:,} bytes instead of {self.file.size:,}"
        told = self._digest.hexdigest()
        if told == self.file.etag or not checksummed(self.file):
            return ""
        return f"{self._digest.name} {told} instead of {self.file.etag}"

    def _read_what_is_there(self) -> None:
        self._target.seek(0)
        while piece := self._target.read(PIECE):
            self._take(piece)
        if self.size > self.file.size:
            self._begin_again()

    def _begin_again(self) -> None:
        self._target.truncate(0)
        self._count(-min(self.size, self.file.size))
        self.size, self._digest = 0, new_digest(self.file)

    def _take(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.size += len(piece)


def checksummed(file: RemoteFile) -> bool:
    return len(file.etag) in {SHA256, GIT} and set(file.etag) <= set("0123456789abcdef")


def new_digest(file: RemoteFile) -> Any:
    """Return the hash that the ETag is compared with: git's blob hash or SHA-256.

    Git's SHA-1, of a header and the content, detects damage here and is no protection against attacks.
    """
    if len(file.etag) != GIT:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
