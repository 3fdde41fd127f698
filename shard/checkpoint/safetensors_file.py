"""Safetensors files: the header, used only once all of it is checked, and an open file whose tensors are read.

A file is eight bytes with the length of the header, the header, and the data of all tensors one behind the other. The
header is a JSON object with an entry for each tensor: its dtype, its shape, where its data begins and ends. The file
may be hostile, so the header is read entry by entry, and memory grows with its real size, not with the claimed sizes.
Errors are ValueErrors that name the tensor. The launcher reads headers of adapters with this module, so it imports no
torch.

A file is read and never mapped: a process that touches a mapped page of a file that has shrunk is killed. After every
read the file is checked for changes since it was opened.
"""

import json
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from reprlib import repr as shown
from typing import Any, BinaryIO, NamedTuple

HEADER_LENGTH_STRUCT = struct.Struct("<Q")
MIN_HEADER_BYTES, MAX_HEADER_BYTES = 2, 100_000_000  # of a header; the maximum is that of the format
MAX_TENSORS = 100_000
MAX_NAME_BYTES = 512
MAX_ENTRY_BYTES = 4096
MAX_DIMENSIONS = 16
MAX_SIZE = 2**63 - 1  # of a dimension, and of a tensor in bytes
METADATA_KEY = "__metadata__"
ENTRY_FIELDS = ["data_offsets", "dtype", "shape"]
BITS_BY_DTYPE = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64}

# All are possessive: none of them backtracks, so none takes memory or quadratic time on a long text.
WHITESPACE_PATTERN = rb"[ \t\n\r]*+"
STRING_PATTERN = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
OBJECT_START_REGEX = re.compile(rb"\{" + WHITESPACE_PATTERN)
NAME_REGEX = re.compile(b"(" + STRING_PATTERN + b")" + WHITESPACE_PATTERN + b":" + WHITESPACE_PATTERN)
ENTRY_REGEX = re.compile(rb"\{[^{}]{0,%d}+\}" % (MAX_ENTRY_BYTES - 2))
EMPTY_OBJECT_REGEX = re.compile(rb"\{" + WHITESPACE_PATTERN + rb"\}")
STRING_PAIR_REGEX = re.compile(STRING_PATTERN + WHITESPACE_PATTERN + b":" + WHITESPACE_PATTERN + STRING_PATTERN
                               + WHITESPACE_PATTERN + rb"([,}])" + WHITESPACE_PATTERN)
COMMA_REGEX = re.compile(WHITESPACE_PATTERN + b"," + WHITESPACE_PATTERN)
OBJECT_END_REGEX = re.compile(WHITESPACE_PATTERN + rb"\}" + WHITESPACE_PATTERN)

Shape = tuple[int, ...]
HeaderText = bytes | bytearray


class TensorEntry(NamedTuple):
    """Tensor in its file."""

    dtype: str  # a key in BITS_BY_DTYPE
    shape: Shape
    begin: int  # offset in the file, in bytes; so is `end`
    end: int


def read_file_header(file: BinaryIO, file_size: int) -> dict[str, TensorEntry]:
    """Read and check the header of a file of `file_size` bytes, from its beginning."""
    length = read_header_length(file.read(HEADER_LENGTH_STRUCT.size), file_size)
    return parse_tensor_entries(file.read(length), file_size)


def read_header_length(text: HeaderText, file_size: int) -> int:
    """Return the length of the header, from the first bytes of the file."""
    if len(text) < HEADER_LENGTH_STRUCT.size:
        raise ValueError(f"the file has no header, only {file_size} bytes; is the download complete?")
    (length,) = HEADER_LENGTH_STRUCT.unpack(text[:HEADER_LENGTH_STRUCT.size])
    if not MIN_HEADER_BYTES <= length <= MAX_HEADER_BYTES:
        raise ValueError(f"the header must take {MIN_HEADER_BYTES} to {MAX_HEADER_BYTES} bytes, it claims {length}")
    if length > file_size - HEADER_LENGTH_STRUCT.size:
        raise ValueError(
            f"the header claims {length} bytes, the file has {file_size - HEADER_LENGTH_STRUCT.size} after its length; "
            f"is the download complete?")
    return int(length)


def parse_tensor_entries(text: HeaderText, file_size: int) -> dict[str, TensorEntry]:
    """Parse and check the entries of the header's text. The tensors' data follows directly behind it."""
    data_start = HEADER_LENGTH_STRUCT.size + len(text)
    entries = {name: parse_tensor_entry(name, entry_text, data_start, file_size)
               for name, entry_text in split_entry_texts(text)}
    check_data_has_no_gaps(entries, data_start, file_size)
    return entries


# ---------------------------------------------------------------------------------------------------------------------
# The text as a list of entries


def split_entry_texts(text: HeaderText) -> Iterator[tuple[str, HeaderText]]:
    """Yield the names and the raw texts of all entries. Metadata must be strings, and is left out."""
    object_start = OBJECT_START_REGEX.match(text)
    if not object_start:
        raise make_damaged_header_error(0, "a header begins with {")
    names: set[str] = set()
    position = object_start.end()
    object_end = OBJECT_END_REGEX.fullmatch(text, position)
    while not object_end:
        name, position = parse_entry_name(text, position)
        if name in names:
            raise ValueError(f"{name} has two entries")
        names.add(name)
        if len(names) > MAX_TENSORS:
            raise ValueError(f"the header has more than {MAX_TENSORS} entries; the first too many is {name}")
        entry_match = (match_object_of_strings(text, position) if name == METADATA_KEY
                       else ENTRY_REGEX.match(text, position))
        if not entry_match:
            expected = ("of strings" if name == METADATA_KEY
                        else f"of at most {MAX_ENTRY_BYTES} bytes without another in it")
            raise ValueError(f"the entry of {name}, at byte {HEADER_LENGTH_STRUCT.size + position}, is damaged: "
                             f"it must be an object {expected}")
        if name != METADATA_KEY:
            yield name, entry_match[0]
        position = entry_match.end()
        object_end = OBJECT_END_REGEX.fullmatch(text, position)
        if not object_end:
            comma = COMMA_REGEX.match(text, position)
            if not comma:
                raise make_damaged_header_error(
                    position, f"after the entry of {name} comes another, or the header ends")
            position = comma.end()


def match_object_of_strings(text: HeaderText, position: int) -> re.Match[bytes] | None:
    """Match an object of strings and return the match of its end. It is matched pair by pair, since before Python
    3.11.5 a possessive repetition of a group counts as matched up to where it failed."""
    nothing, begun = EMPTY_OBJECT_REGEX.match(text, position), OBJECT_START_REGEX.match(text, position)
    if nothing or not begun:
        return nothing
    pair = STRING_PAIR_REGEX.match(text, begun.end())
    while pair and pair[1] == b",":
        pair = STRING_PAIR_REGEX.match(text, pair.end())
    return pair


def parse_entry_name(text: HeaderText, position: int) -> tuple[str, int]:
    """Return the name at `position`, and where its value begins."""
    match = NAME_REGEX.match(text, position)
    if not match:
        raise make_damaged_header_error(position, "a name in quotes and a colon come there")
    quoted_name = match[1]
    if len(quoted_name) - 2 > MAX_NAME_BYTES:
        raise ValueError(f"a name must have at most {MAX_NAME_BYTES} bytes, one has {len(quoted_name) - 2}: "
                         f"{shown(quoted_name)}")
    try:
        name = json.loads(str(quoted_name, "utf-8"))
    except ValueError as error:
        raise make_damaged_header_error(position, f"the name is not JSON: {error}") from error
    if not name or not name.isprintable():  # it will be printed
        raise make_damaged_header_error(position, f"a name is made of printable characters, this one is {name!a}")
    return name, match.end()


def make_damaged_header_error(position: int, reason: str) -> ValueError:
    return ValueError(f"the header is damaged at byte {HEADER_LENGTH_STRUCT.size + position} of the file: {reason}; "
                      f"is the download complete?")


# ---------------------------------------------------------------------------------------------------------------------
# One entry


def parse_tensor_entry(name: str, entry_text: HeaderText, data_start: int, file_size: int) -> TensorEntry:
    """Parse and check one entry, whose offsets count from `data_start`."""
    fields = parse_entry_fields(name, entry_text)
    dtype = fields["dtype"]
    if not isinstance(dtype, str) or dtype not in BITS_BY_DTYPE:
        raise ValueError(f"the dtype of {name} must be one of {', '.join(BITS_BY_DTYPE)}, got {shown(dtype)}")
    shape = parse_shape(name, fields["shape"])
    first, last = parse_data_offsets(name, fields["data_offsets"])
    size = count_tensor_bytes(name, dtype, shape)
    if last - first != size:
        raise ValueError(f"{name} is {dtype} {shown(list(shape))}, which takes {size} bytes; its data_offsets "
                         f"[{first}, {last}] have {last - first}")
    if data_start + last > file_size:
        raise ValueError(f"the file ends {data_start + last - file_size} bytes before {name} does; "
                         f"is the download complete?")
    return TensorEntry(dtype, shape, data_start + first, data_start + last)


def parse_entry_fields(name: str, entry_text: HeaderText) -> dict[str, Any]:
    try:
        pairs = json.loads(str(entry_text, "utf-8"), object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the entry of {name} is damaged: {error}") from error
    keys = [key for key, _ in pairs]
    if sorted(keys) != ENTRY_FIELDS:
        raise ValueError(f"the entry of {name} must have {', '.join(ENTRY_FIELDS)}, each once and nothing else; it has "
                         f"{shown(keys)}")
    return dict(pairs)


def parse_shape(name: str, shape: object) -> Shape:
    if not isinstance(shape, list):
        raise ValueError(f"the shape of {name} must be a list, got {shown(shape)}")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{name} must have at most {MAX_DIMENSIONS} dimensions, it has {len(shape)}")
    for number, size in enumerate(shape):
        if not is_valid_size(size):
            raise ValueError(f"dimension {number} of {name} must be a whole number from 0 to {MAX_SIZE}, "
                             f"got {shown(size)}")
    return tuple(shape)


def parse_data_offsets(name: str, offsets: object) -> tuple[int, int]:
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_valid_size, offsets)):
        raise ValueError(f"data_offsets of {name} must be two whole numbers from 0 to {MAX_SIZE}, got {shown(offsets)}")
    first, last = offsets
    if first > last:
        raise ValueError(f"data_offsets of {name} must not go backwards, got {shown(offsets)}")
    return first, last


def is_valid_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE  # True is an int as well


def count_tensor_bytes(name: str, dtype: str, shape: Shape) -> int:
    """Return the size of a tensor. No partial product may overflow either: strides are computed even if it is empty."""
    if prod(size or 1 for size in shape) * BITS_BY_DTYPE[dtype] > MAX_SIZE * 8:
        raise ValueError(f"{name} is {dtype} {shown(list(shape))}, more than the {MAX_SIZE} bytes that a tensor can "
                         f"have")
    count, rest = divmod(prod(shape) * BITS_BY_DTYPE[dtype], 8)
    if rest:
        raise ValueError(f"{name} is {dtype} {shown(list(shape))}, which is not a whole number of bytes")
    return count


def check_data_has_no_gaps(entries: dict[str, TensorEntry], data_start: int, file_size: int) -> None:
    """Check that every byte behind the header belongs to exactly one tensor. A tensor that was moved leaves a gap and
    overlaps another: the overlap is reported, since that error names the tensor."""
    order = sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))
    for (before, one), (name, entry) in pairwise(order):
        if entry.begin < one.end:
            raise ValueError(f"{name} begins {one.end - entry.begin} bytes before {before} ends")
    position, before = data_start, "the header"
    for name, entry in order:
        if entry.begin > position:
            raise ValueError(f"{entry.begin - position} bytes between {before} and {name} belong to no tensor")
        position, before = entry.end, name
    if position != file_size:
        raise ValueError(
            f"{file_size - position} bytes behind {before}, where the last tensor ends, belong to no tensor")


# ---------------------------------------------------------------------------------------------------------------------
# An open file


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
            return parse_tensor_entries(text, size)

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
