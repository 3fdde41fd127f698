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

from launcher.adapters.contents import CONFIG, FILES, check_names, check_sizes, read_base
from launcher.adapters.errors import Refused, called
from launcher.adapters.protocol import Fetch
from launcher.adapters.remote_version import Sighting
from launcher.hub.client import Unreachable
from launcher.hub.retry_policy import Patience

SCHEME = "s3://"
BUCKET, FOLDER = "PREDIBASE_MODEL_BUCKET", "PREDIBASE_MODEL_FOLDER"
BUCKET_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]")
LONGEST_KEY = 1000  # bytes; the name of a file is appended
PAUSES = (1.0, 2.0, 4.0)  # seconds; a client waits
Answer = TypeVar("Answer")


class Entry(NamedTuple):
    """A file in a bucket."""

    size: int
    etag: str


class Storage(Protocol):
    """Client of a bucket service. Raises Refused, or Unreachable for errors worth a retry."""

    def list(self, bucket: str, prefix: str) -> Mapping[str, Entry]:
        """Return the entries by key."""

    def read(self, bucket: str, key: str, etag: str, start: int) -> Iterator[bytes]:
        """Yield the bytes from `start` on. Raises Refused if the ETag has changed."""


class Place(NamedTuple):
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


class S3Source:
    is_far = True

    def __init__(self, connect: Callable[[], Storage], environment: Mapping[str, str],
                 pauses: Sequence[float] = PAUSES) -> None:
        """Store `connect`, which is called with the first request."""
        self._connect, self._environment, self._pauses = connect, environment, pauses
        self._connecting = Lock()
        self._storage: Storage | None = None
        self._stopped = Event()  # never set: downloads end with the process

    def tokens(self, asked: Fetch) -> tuple[str, ...]:  # noqa: ARG002 - buckets do not use tokens
        return ("",)

    def nearby(self, asked: Fetch) -> None:
        """Return None: nothing is cached besides the stored versions."""

    @contextmanager
    def look(self, asked: Fetch) -> Iterator[Sighting]:
        place = read_name(asked.name, self._environment)
        files = self._files(place)
        check_sizes({name: file.size for name, file in files.items()})
        yield Sighting(sum(file.size for file in files.values()), partial(self._bring, place, files),
                       (place, *files.values()))

    def _files(self, place: Place) -> dict[str, Entry]:
        start = f"{place.key}/"
        found = self._asked(lambda: self._connected().list(place.bucket, f"{start}adapter_"))
        names = {key.removeprefix(start): entry for key, entry in found.items()}
        if not names:
            raise Refused("missing", f"there is no adapter {called(str(place))}")
        check_names(names, called(str(place)))
        return {name: names[name] for name in FILES}

    def _bring(self, place: Place, files: Mapping[str, Entry], folder: Path) -> None:
        for name, file in files.items():
            self._receive(place.bucket, f"{place.key}/{name}", file, folder / name)
            if name == CONFIG:
                read_base(folder)

    def _receive(self, bucket: str, key: str, file: Entry, target: Path) -> None:
        """Download a file; retries resume where the transfer was interrupted."""
        with target.open("wb", buffering=0) as written:
            self._asked(lambda: go_on(written, self._connected().read(bucket, key, file.etag, written.tell()), file))

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        try:
            return Patience(self._stopped, lambda _: None, self._pauses).ask(question)
        except Unreachable as error:
            raise Refused("unreachable", str(error)) from None

    def _connected(self) -> Storage:
        with self._connecting:
            if self._storage is None:
                self._storage = self._connect()
            return self._storage


def read_name(name: str, environment: Mapping[str, str]) -> Place:
    own = environment.get(BUCKET, "")
    if name.startswith(SCHEME) or not own:
        bucket, _, key = name.removeprefix(SCHEME).partition("/")
    else:
        bucket, key = own, "/".join(filter(None, (environment.get(FOLDER, "").strip("/"), name)))
    key = key.strip("/")
    if not BUCKET_NAME.fullmatch(bucket) or not key or not key.isprintable() or len(key.encode()) > LONGEST_KEY:
        raise Refused("invalid", f"an adapter of the source `s3` has a name such as s3://bucket/key, got "
                                 f"{called(name)}; a key alone is looked for in the bucket that {BUCKET} names")
    return Place(bucket, key)


def go_on(written: FileIO, pieces: Iterator[bytes], file: Entry) -> None:
    """Append the missing bytes. Raises Unreachable if some are still missing, Refused if there are too many."""
    for piece in pieces:
        left = memoryview(piece)
        while left:
            left = left[written.write(left):]
        if written.tell() > file.size:
            raise Refused("invalid", "the adapter is more than its bucket said")
    if written.tell() < file.size:
        raise Unreachable(f"the bucket sent {written.tell():,} of {file.size:,} bytes", heard=True)
