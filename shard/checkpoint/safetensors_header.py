"""The header of a safetensors file: which tensors the file holds. It is used only once all of it is checked.

A file is eight bytes with the length of the header, the header, and the data of all tensors one behind the other. The
header is a JSON object with an entry for each tensor: its dtype, its shape, where its data begins and ends. The file
may be hostile, so the header is read entry by entry, and memory grows with its real size, not with the claimed sizes.

This module needs neither files nor torch: bytes in, entries out. Errors are ValueErrors that name the tensor.
"""

import json
import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from reprlib import repr as shown
from typing import Any, NamedTuple

LENGTH = struct.Struct("<Q")
MIN_BYTES, MAX_BYTES = 2, 100_000_000  # of a header; the maximum is that of the format
MAX_TENSORS = 100_000
MAX_NAME_BYTES = 512
MAX_ENTRY_BYTES = 4096
MAX_DIMENSIONS = 16
MAX_SIZE = 2**63 - 1  # of a dimension, and of a tensor in bytes
METADATA = "__metadata__"
FIELDS = ["data_offsets", "dtype", "shape"]
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64}

# All are possessive: none of them backtracks, so none takes memory or quadratic time on a long text.
BLANK = rb"[ \t\n\r]*+"
STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
BEGIN = re.compile(rb"\{" + BLANK)
NAME = re.compile(b"(" + STRING + b")" + BLANK + b":" + BLANK)
ENTRY = re.compile(rb"\{[^{}]{0,%d}+\}" % (MAX_ENTRY_BYTES - 2))
NO_PAIR = re.compile(rb"\{" + BLANK + rb"\}")
PAIR = re.compile(STRING + BLANK + b":" + BLANK + STRING + BLANK + rb"([,}])" + BLANK)
COMMA = re.compile(BLANK + b"," + BLANK)
END = re.compile(BLANK + rb"\}" + BLANK)

Shape = tuple[int, ...]
Text = bytes | bytearray


class Entry(NamedTuple):
    """Tensor in its file."""

    dtype: str  # a key in BITS
    shape: Shape
    begin: int  # offset in the file, in bytes; so is `end`
    end: int


def read_length(text: Text, file_size: int) -> int:
    """Return the length of the header, from the first bytes of the file."""
    if len(text) < LENGTH.size:
        raise ValueError(f"the file has no header, only {file_size} bytes; is the download complete?")
    (length,) = LENGTH.unpack(text[:LENGTH.size])
    if not MIN_BYTES <= length <= MAX_BYTES:
        raise ValueError(f"the header must take {MIN_BYTES} to {MAX_BYTES} bytes, it claims {length}")
    if length > file_size - LENGTH.size:
        raise ValueError(f"the header claims {length} bytes, the file has {file_size - LENGTH.size} after its length; "
                         f"is the download complete?")
    return int(length)


def read_entries(text: Text, file_size: int) -> dict[str, Entry]:
    """Read and check the entries of the header's text. The tensors' data follows directly behind it."""
    begin = LENGTH.size + len(text)
    entries: dict[str, Entry] = {}
    for name, written in split(text):
        entries[name] = read_entry(name, written, begin, file_size)
    check_cover(entries, begin, file_size)
    return entries


# ---------------------------------------------------------------------------------------------------------------------
# The text as a list of entries


def split(text: Text) -> Iterator[tuple[str, Text]]:
    """Yield the names and the raw texts of all entries. Metadata must be strings, and is left out."""
    begun = BEGIN.match(text)
    if not begun:
        raise damaged(0, "a header begins with {")
    names: set[str] = set()
    place = begun.end()
    ended = END.fullmatch(text, place)
    while not ended:
        name, place = read_name(text, place)
        if name in names:
            raise ValueError(f"{name} has two entries")
        names.add(name)
        if len(names) > MAX_TENSORS:
            raise ValueError(f"the header has more than {MAX_TENSORS} entries; the first too many is {name}")
        found = end_of_strings(text, place) if name == METADATA else ENTRY.match(text, place)
        if not found:
            raise ValueError(f"the entry of {name}, at byte {LENGTH.size + place}, is damaged: {expected(name)}")
        if name != METADATA:
            yield name, found[0]
        place = found.end()
        ended = END.fullmatch(text, place)
        if not ended:
            place = skip_comma(text, place, name)


def end_of_strings(text: Text, place: int) -> re.Match[bytes] | None:
    """Match an object of strings and return the match of its end. It is matched pair by pair, since before Python
    3.11.5 a possessive repetition of a group counts as matched up to where it failed."""
    nothing, begun = NO_PAIR.match(text, place), BEGIN.match(text, place)
    if nothing or not begun:
        return nothing
    pair = PAIR.match(text, begun.end())
    while pair and pair[1] == b",":
        pair = PAIR.match(text, pair.end())
    return pair


def read_name(text: Text, place: int) -> tuple[str, int]:
    """Return the name at `place`, and where its value begins."""
    found = NAME.match(text, place)
    if not found:
        raise damaged(place, "a name in quotes and a colon come there")
    written = found[1]
    if len(written) - 2 > MAX_NAME_BYTES:
        raise ValueError(f"a name must have at most {MAX_NAME_BYTES} bytes, one has {len(written) - 2}: "
                         f"{shown(written)}")
    try:
        name = json.loads(str(written, "utf-8"))
    except ValueError as error:
        raise damaged(place, f"the name is not JSON: {error}") from error
    if not name or not name.isprintable():  # it will be printed
        raise damaged(place, f"a name is made of printable characters, this one is {name!a}")
    return name, found.end()


def skip_comma(text: Text, place: int, name: str) -> int:
    found = COMMA.match(text, place)
    if not found:
        raise damaged(place, f"after the entry of {name} comes another, or the header ends")
    return found.end()


def expected(name: str) -> str:
    if name == METADATA:
        return "it must be an object of strings"
    return f"it must be an object of at most {MAX_ENTRY_BYTES} bytes without another in it"


def damaged(place: int, why: str) -> ValueError:
    return ValueError(f"the header is damaged at byte {LENGTH.size + place} of the file: {why}; "
                      f"is the download complete?")


# ---------------------------------------------------------------------------------------------------------------------
# One entry


def read_entry(name: str, written: Text, begin: int, file_size: int) -> Entry:
    """Read and check one entry, whose offsets count from `begin`."""
    fields = read_fields(name, written)
    dtype, shape = read_dtype(name, fields["dtype"]), read_shape(name, fields["shape"])
    first, last = read_offsets(name, fields["data_offsets"])
    size = count_bytes(name, dtype, shape)
    if last - first != size:
        raise ValueError(f"{name} is {dtype} {shown(list(shape))}, which takes {size} bytes; its data_offsets "
                         f"[{first}, {last}] have {last - first}")
    if begin + last > file_size:
        raise ValueError(f"the file ends {begin + last - file_size} bytes before {name} does; "
                         f"is the download complete?")
    return Entry(dtype, shape, begin + first, begin + last)


def read_fields(name: str, written: Text) -> dict[str, Any]:
    try:
        pairs = json.loads(str(written, "utf-8"), object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the entry of {name} is damaged: {error}") from error
    found = [key for key, _ in pairs]
    if sorted(found) != FIELDS:
        raise ValueError(f"the entry of {name} must have {', '.join(FIELDS)}, each once and nothing else; it has "
                         f"{shown(found)}")
    return dict(pairs)


def read_dtype(name: str, dtype: object) -> str:
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"the dtype of {name} must be one of {', '.join(BITS)}, got {shown(dtype)}")
    return dtype


def read_shape(name: str, shape: object) -> Shape:
    if not isinstance(shape, list):
        raise ValueError(f"the shape of {name} must be a list, got {shown(shape)}")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{name} must have at most {MAX_DIMENSIONS} dimensions, it has {len(shape)}")
    for number, size in enumerate(shape):
        if not is_size(size):
            raise ValueError(f"dimension {number} of {name} must be a whole number from 0 to {MAX_SIZE}, "
                             f"got {shown(size)}")
    return tuple(shape)


def read_offsets(name: str, offsets: object) -> tuple[int, int]:
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_size, offsets)):
        raise ValueError(f"data_offsets of {name} must be two whole numbers from 0 to {MAX_SIZE}, got {shown(offsets)}")
    first, last = offsets
    if first > last:
        raise ValueError(f"data_offsets of {name} must not go backwards, got {shown(offsets)}")
    return first, last


def is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE  # True is an int as well


def count_bytes(name: str, dtype: str, shape: Shape) -> int:
    """Return the size of a tensor. No partial product may overflow either: strides are computed even if it is empty."""
    if prod(size or 1 for size in shape) * BITS[dtype] > MAX_SIZE * 8:
        raise ValueError(f"{name} is {dtype} {shown(list(shape))}, more than the {MAX_SIZE} bytes that a tensor can "
                         f"have")
    count, rest = divmod(prod(shape) * BITS[dtype], 8)
    if rest:
        raise ValueError(f"{name} is {dtype} {shown(list(shape))}, which is not a whole number of bytes")
    return count


def check_cover(entries: dict[str, Entry], begin: int, file_size: int) -> None:
    """Check that every byte behind the header belongs to exactly one tensor. A tensor that was moved leaves a gap and
    overlaps another: the overlap is reported, since that error names the tensor."""
    order = sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))
    for (before, one), (name, entry) in pairwise(order):
        if entry.begin < one.end:
            raise ValueError(f"{name} begins {one.end - entry.begin} bytes before {before} ends")
    place, before = begin, "the header"
    for name, entry in order:
        if entry.begin > place:
            raise ValueError(f"{entry.begin - place} bytes between {before} and {name} belong to no tensor")
        place, before = entry.end, name
    if place != file_size:
        raise ValueError(f"{file_size - place} bytes behind {before}, where the last tensor ends, belong to no tensor")
