"""One opened safetensors file: its tensors, whose data is read into memory of the caller.

The file is read and never mapped: a process that touches a mapped page of a file that has shrunk is killed. After every
read the file is checked for changes since it was opened.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shard.checkpoint.safetensors_header import LENGTH, Entry, read_entries, read_length


class State(NamedTuple):
    """Attributes of a file that change when it is written."""

    size: int
    changed: int  # when, in nanoseconds


class TensorFile:
    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._opened = self._state()
        self.entries: dict[str, Entry] = self._read_header()

    def read(self, what: str, place: int, memory: memoryview) -> None:
        """Fill `memory` with the bytes of the file from the offset `place` on. `what` names them in errors."""
        while memory:
            count = self._read_some(what, place, memory)
            if not count:
                raise ValueError(f"{self.path} ends at byte {place}, within {what}; it had {self._opened.size} bytes "
                                 f"when it was opened, and must not change while it is read")
            place, memory = place + count, memory[count:]
        if self._state() != self._opened:
            raise ValueError(f"{self.path} was changed while {what} was read: it had {self._opened.size} bytes when it "
                             f"was opened and has {self._state().size}; it must not change while it is read")

    def _read_some(self, what: str, place: int, memory: memoryview) -> int:
        try:
            return os.preadv(self._descriptor, [memory], place)
        except OSError as error:
            raise ValueError(f"{self.path}: {what} cannot be read: {error.strerror}") from error

    def _state(self) -> State:
        found = os.fstat(self._descriptor)
        return State(found.st_size, found.st_mtime_ns)

    def _read_header(self) -> dict[str, Entry]:
        size = self._opened.size
        first = self._text(0, min(LENGTH.size, size))
        with self._named():
            length = read_length(first, size)
        text = self._text(LENGTH.size, length)
        with self._named():
            return read_entries(text, size)

    def _text(self, place: int, length: int) -> bytearray:
        text = bytearray(length)
        self.read("its header", place, memoryview(text))
        return text

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[TensorFile]:
    with path.open("rb", buffering=0) as file:
        yield TensorFile(path, file.fileno())
