"""Download of one file from the Hub into the cache: resumed, checked, and visible only when complete. `ModelDownload`
downloads all files of a model.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from io import FileIO
from threading import Event
from typing import Any

from launcher.hub.cache import CachedRepository
from launcher.hub.client import CHUNK_BYTES, HubClient, RemoteFile, ServerUnreachableError
from launcher.hub.retry_policy import RetryPolicy

SHA256_DIGITS, GIT_HASH_DIGITS = 64, 40  # digits


class DownloadError(Exception):
    """The download failed; the message is the one line that the user reads."""


@dataclass(frozen=True, slots=True)
class FileDownloader:
    """Downloads of the files of one commit.

    `on_bytes_received` is called with numbers of received bytes, negative if some are discarded, and `on_wait` before
    waiting for another process that downloads the same file.
    """

    hub_client: HubClient
    cached_repository: CachedRepository
    commit: str
    stop_event: Event
    make_retry_policy: Callable[[], RetryPolicy]
    on_wait: Callable[[], None]
    on_bytes_received: Callable[[int], None]

    def download_file(self, file: RemoteFile) -> None:
        """Download the file into the cache, if it is not there.

        A concurrent download by another process is waited for, and its bytes are counted.
        """
        num_bytes_before = self.cached_repository.count_downloaded_bytes(file.etag, file.num_bytes)
        if self.cached_repository.has_blob(file.etag, file.num_bytes):
            return
        with self.cached_repository.lock_blob(file.etag, self.on_wait):
            num_bytes_now = self.cached_repository.count_downloaded_bytes(file.etag, file.num_bytes)
            self.on_bytes_received(num_bytes_now - num_bytes_before)
            if not self.cached_repository.has_blob(file.etag, file.num_bytes):
                self._download_blob(file)

    def _download_blob(self, file: RemoteFile) -> None:
        path = self.cached_repository.get_partial_blob_path(file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as target:  # unbuffered: received bytes survive a kill
            partial_download = PartialDownload(target, file, self.on_bytes_received)
            self._receive_with_retries(file, partial_download)
            os.fsync(target.fileno())
        if damage := partial_download.describe_damage():
            path.unlink()
            raise DownloadError(
                f"{file.name} of {self.hub_client.repository_name} arrived damaged ({damage}) and was removed; start "
                                "again to download it anew")
        path.replace(self.cached_repository.get_blob_path(file.etag))

    def _receive_with_retries(self, file: RemoteFile, partial_download: "PartialDownload") -> None:
        retry_policy = self.make_retry_policy()
        while partial_download.num_bytes < file.num_bytes:
            try:
                with closing(self.hub_client.read_chunks(file, self.commit, partial_download.num_bytes)) as chunks:
                    self._write_chunks(chunks, partial_download, retry_policy)
            except ServerUnreachableError as error:
                retry_policy.wait_before_retry(error)

    def _write_chunks(self, chunks: Iterator[tuple[int, bytes]], partial_download: "PartialDownload",
                      retry_policy: RetryPolicy) -> None:
        for offset, chunk in chunks:
            if self.stop_event.is_set():
                raise DownloadError(f"the download of {partial_download.remote_file.name} was stopped")
            partial_download.write(offset, chunk)
            retry_policy.reset_failures()
        if partial_download.num_bytes < partial_download.remote_file.num_bytes:
            raise ServerUnreachableError(f"{self.hub_client.endpoint} sent {partial_download.num_bytes:,} of "
                                         f"{partial_download.remote_file.num_bytes:,} bytes "
                                         f"of " f"{partial_download.remote_file.name}", has_response=True)


class PartialDownload:
    """Partial download of a file, and its checksum so far."""

    def __init__(self, target: FileIO, remote_file: RemoteFile, on_bytes_received: Callable[[int], None]) -> None:
        self.remote_file = remote_file
        self.num_bytes = 0
        self._target, self._on_bytes_received = target, on_bytes_received
        self._hash = make_file_hasher(remote_file)
        self._read_existing_bytes()

    def write(self, offset: int, chunk: bytes) -> None:
        if offset != self.num_bytes:
            self._discard_all_bytes()
        unwritten = memoryview(chunk)
        while unwritten:
            unwritten = unwritten[self._target.write(unwritten):]
        self._hash_chunk(chunk)
        self._on_bytes_received(len(chunk))

    def describe_damage(self) -> str:
        """Return a description of the damage, or "". A file whose ETag is no checksum is checked by size only."""
        if self.num_bytes != self.remote_file.num_bytes:
            return f"{self.num_bytes:,} bytes instead of {self.remote_file.num_bytes:,}"
        hex_digest = self._hash.hexdigest()
        if hex_digest == self.remote_file.etag or not is_etag_checksum(self.remote_file):
            return ""
        return f"{self._hash.name} {hex_digest} instead of {self.remote_file.etag}"

    def _read_existing_bytes(self) -> None:
        self._target.seek(0)
        while chunk := self._target.read(CHUNK_BYTES):
            self._hash_chunk(chunk)
        if self.num_bytes > self.remote_file.num_bytes:
            self._discard_all_bytes()

    def _discard_all_bytes(self) -> None:
        self._target.truncate(0)
        self._on_bytes_received(-min(self.num_bytes, self.remote_file.num_bytes))
        self.num_bytes, self._hash = 0, make_file_hasher(self.remote_file)

    def _hash_chunk(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self.num_bytes += len(chunk)


def is_etag_checksum(file: RemoteFile) -> bool:
    return len(file.etag) in {SHA256_DIGITS, GIT_HASH_DIGITS} and set(file.etag) <= set("0123456789abcdef")


def make_file_hasher(file: RemoteFile) -> Any:
    """Return the hash that the ETag is compared with: git's blob hash or SHA-256.

    Git's SHA-1, of a header and the content, detects damage here and is no protection against attacks.
    """
    if len(file.etag) != GIT_HASH_DIGITS:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.num_bytes}\0".encode(), usedforsecurity=False)
