"""Source `s3`: adapters in buckets, named as in LoRAX: `s3://bucket/key`, `bucket/key`, or a key alone.

A key alone is looked up in the bucket that PREDIBASE_MODEL_BUCKET names. The server's own credentials decide what may
be read.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from threading import Event, Lock
from typing import NamedTuple, Protocol, TypeVar

from launcher.adapters.adapter_files import (
    ADAPTER_FILES,
    CONFIG_FILE,
    check_adapter_file_names,
    check_adapter_file_sizes,
    read_base_model_name,
)
from launcher.adapters.allow_list import BUCKET_VARIABLE, FOLDER_VARIABLE, S3_SCHEME
from launcher.adapters.errors import AdapterError, quote_name
from launcher.adapters.sources.interface import FetchableAdapter
from launcher.adapters.store_protocol import FetchRequest
from launcher.hub.client import ServerUnreachableError
from launcher.hub.retry_policy import RetryPolicy

BUCKET_NAME_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]")
FORBIDDEN_KEY_PARTS = frozenset({"", ".", ".."})  # clients may shorten URLs that have them to other keys
MAX_KEY_BYTES = 1000  # bytes; the name of a file is appended
RETRY_PAUSES_SECONDS = (1.0, 2.0, 4.0)  # seconds; a client waits
Result = TypeVar("Result")


class BucketEntry(NamedTuple):
    """A file in a bucket."""

    num_bytes: int
    etag: str


class ObjectStorageClient(Protocol):
    """Client of a bucket service. Raises AdapterError, or ServerUnreachableError for errors worth a retry."""

    def list_entries(self, bucket: str, prefix: str) -> Mapping[str, BucketEntry]:
        """Return the entries by key."""

    def read_object(self, bucket: str, key: str, etag: str, start_offset: int) -> Iterator[bytes]:
        """Yield the bytes from `start_offset` on. Raises AdapterError if the ETag has changed."""


class ObjectLocation(NamedTuple):
    """Bucket and key of an adapter's folder."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{S3_SCHEME}{self.bucket}/{self.key}"


class S3Source:
    """Source `s3`: adapters in buckets of S3 or a compatible storage."""

    is_remote = True

    def __init__(self, connect: Callable[[], ObjectStorageClient], environment: Mapping[str, str],
                 pauses: Sequence[float] = RETRY_PAUSES_SECONDS) -> None:
        """Store `connect`, which is called with the first request."""
        self._connect, self._environment, self._pauses = connect, environment, pauses
        self._connect_lock = Lock()
        self._storage: ObjectStorageClient | None = None
        self._stop_event = Event()  # never set: downloads end with the process

    def make_uri(self, name: str) -> str:
        return str(parse_s3_adapter_name(name, self._environment))

    def list_tokens_to_try(self, request: FetchRequest) -> tuple[str, ...]:  # noqa: ARG002 - buckets do not use tokens
        return ("",)

    def find_local_copy(self, request: FetchRequest) -> None:
        """Return None: nothing is cached besides the stored versions."""

    @contextmanager
    def open_adapter(self, request: FetchRequest) -> Iterator[FetchableAdapter]:
        location = parse_s3_adapter_name(request.name, self._environment)
        files = self._list_adapter_files(location)
        check_adapter_file_sizes({name: file.num_bytes for name, file in files.items()})
        yield FetchableAdapter(sum(file.num_bytes for file in files.values()),
                               partial(self._download_adapter, location, files), (location, *files.values()))

    def _list_adapter_files(self, location: ObjectLocation) -> dict[str, BucketEntry]:
        key_prefix = f"{location.key}/"
        entries = self._call_with_retries(lambda: self._get_storage().list_entries(location.bucket,
                                                                                   f"{key_prefix}adapter_"))
        entries_by_name = {key.removeprefix(key_prefix): entry for key, entry in entries.items()}
        if not entries_by_name:
            raise AdapterError("missing", f"there is no adapter {quote_name(str(location))}")
        check_adapter_file_names(entries_by_name, quote_name(str(location)))
        return {name: entries_by_name[name] for name in ADAPTER_FILES}

    def _download_adapter(self, location: ObjectLocation, files: Mapping[str, BucketEntry], folder: Path) -> None:
        for name, file in files.items():
            self._download_file(location.bucket, f"{location.key}/{name}", file, folder / name)
            if name == CONFIG_FILE:
                read_base_model_name(folder)

    def _download_file(self, bucket: str, key: str, entry: BucketEntry, target: Path) -> None:
        """Download a file; retries resume where the transfer was interrupted."""
        with target.open("wb", buffering=0) as target_file:
            self._call_with_retries(lambda: append_missing_bytes(
                target_file, self._get_storage().read_object(bucket, key, entry.etag, target_file.tell()), entry))

    def _call_with_retries(self, operation: Callable[[], Result]) -> Result:
        try:
            return RetryPolicy(self._stop_event, lambda _: None, self._pauses).call_with_retries(operation)
        except ServerUnreachableError as error:
            raise AdapterError("unreachable", str(error)) from None

    def _get_storage(self) -> ObjectStorageClient:
        with self._connect_lock:
            if self._storage is None:
                self._storage = self._connect()
            return self._storage


def parse_s3_adapter_name(name: str, environment: Mapping[str, str]) -> ObjectLocation:
    default_bucket = environment.get(BUCKET_VARIABLE, "")
    if name.startswith(S3_SCHEME) or not default_bucket:
        bucket, _, key = name.removeprefix(S3_SCHEME).partition("/")
    else:
        bucket, key = default_bucket, "/".join(filter(None, (environment.get(FOLDER_VARIABLE, "").strip("/"), name)))
    key = key.strip("/")
    if not BUCKET_NAME_PATTERN.fullmatch(bucket) or not key or not key.isprintable() or len(
        key.encode()) > MAX_KEY_BYTES or not FORBIDDEN_KEY_PARTS.isdisjoint(key.split("/")):
        raise AdapterError("invalid", f"an adapter of the source `s3` has a name such as s3://bucket/key, got "
                           f"{quote_name(name)}; a key alone is looked for in the bucket that {BUCKET_VARIABLE} names")
    return ObjectLocation(bucket, key)


def append_missing_bytes(target_file: FileIO, chunks: Iterator[bytes], entry: BucketEntry) -> None:
    """Append the missing bytes. Raises ServerUnreachableError if some do not come, AdapterError if too many do."""
    for chunk in chunks:
        unwritten = memoryview(chunk)
        while unwritten:
            unwritten = unwritten[target_file.write(unwritten):]
        if target_file.tell() > entry.num_bytes:
            raise AdapterError("invalid", "the adapter is more than its bucket said")
    if target_file.tell() < entry.num_bytes:
        raise ServerUnreachableError(f"the bucket sent {target_file.tell():,} of {entry.num_bytes:,} bytes",
                                     has_response=True)
