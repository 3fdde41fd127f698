"""One opened safetensors file: its tensors, whose data is read into memory of the caller.

The file is read and never mapped: a process that touches a mapped page of a file that has shrunk is killed. After every
read the file is checked for changes since it was opened.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shard.checkpoint.safetensors_header import (
    HEADER_LENGTH_STRUCT,
    TensorEntry,
    read_header_length,
    read_tensor_entries,
)


class FileStamp(NamedTuple):
    """Size and time of modification of a file; an equal stamp means that the file has not changed."""

    size: int
    modified_ns: int  # when, in nanoseconds


class SafetensorsFile:
    """An open safetensors file with its checked header."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._state_at_open = self._read_file_state()
        self.entries: dict[str, TensorEntry] = self._read_header()

    def read_bytes_into(self, description: str, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes of the file from the offset `offset` on. `description` names them in errors."""
        while target:
            try:
                count = os.preadv(self._descriptor, [target], offset)
            except OSError as error:
                raise ValueError(f"{self.path}: {description} cannot be read: {error.strerror}") from error
            if not count:
                raise ValueError(
                    f"{self.path} ends at byte {offset}, within {description}; it had {self._state_at_open.size} bytes "
                    f"when it was opened, and must not change while it is read")
            offset, target = offset + count, target[count:]
        if self._read_file_state() != self._state_at_open:
            raise ValueError(f"{self.path} was changed while {description} was read: it had {self._state_at_open.size} "
                             f"bytes when it " f"was opened and has {self._read_file_state().size}; it must not change "
                             f"while it is read")

    def _read_file_state(self) -> FileStamp:
        status = os.fstat(self._descriptor)
        return FileStamp(status.st_size, status.st_mtime_ns)

    def _read_header(self) -> dict[str, TensorEntry]:
        size = self._state_at_open.size
        first = self._read_header_bytes(0, min(HEADER_LENGTH_STRUCT.size, size))
        with self._add_path_to_errors():
            length = read_header_length(first, size)
        text = self._read_header_bytes(HEADER_LENGTH_STRUCT.size, length)
        with self._add_path_to_errors():
            return read_tensor_entries(text, size)

    def _read_header_bytes(self, offset: int, length: int) -> bytearray:
        text = bytearray(length)
        self.read_bytes_into("its header", offset, memoryview(text))
        return text

    @contextmanager
    def _add_path_to_errors(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error


@contextmanager
def open_safetensors(path: Path) -> Iterator[SafetensorsFile]:
    with path.open("rb", buffering=0) as file:
        yield SafetensorsFile(path, file.fileno())
