"""Parser of safetensors headers, for the names and shapes of the tensors.

Raises ValueError for an invalid file. The shards parse the header again, and more strictly.
"""

import json
from collections.abc import Mapping
from itertools import chain, pairwise
from math import prod
from typing import Any, BinaryIO, NamedTuple

LENGTH = 8  # bytes of the field that holds the header's length
MOST_BYTES = 16 * 2**20
MOST_DIMENSIONS = 16
MOST_BITS = 2**66  # per tensor, with empty dimensions counted as 1
LONGEST_NAME = 512  # bytes
METADATA = "__metadata__"
FIELDS = {"dtype", "shape", "data_offsets"}
WIDTHS = {  # bits per element
    4: "F4", 6: "F6_E2M3 F6_E3M2", 8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "U16 I16 F16 BF16", 32: "U32 I32 F32", 64: "U64 I64 F64 C64"}
BITS = {dtype: bits for bits, dtypes in WIDTHS.items() for dtype in dtypes.split()}

Shape = tuple[int, ...]


class Place(NamedTuple):
    """Byte range of a tensor's data, counted from the end of the header."""

    begin: int
    end: int


def read_shapes(file: BinaryIO, size: int) -> dict[str, Shape]:
    """Return the shapes of all tensors by name. `file` is at its beginning and has `size` bytes."""
    told = file.read(LENGTH)
    length, most = int.from_bytes(told, "little"), min(MOST_BYTES, size - LENGTH)
    if len(told) < LENGTH or not 2 <= length <= most:
        raise ValueError(f"its header must have 2 to {most} bytes, it claims {length}")
    entries = read_entries(file.read(length))
    shapes = {name: read_shape(name, entry) for name, entry in entries.items()}
    check_places([read_place(name, entry, shapes[name]) for name, entry in entries.items()], size - LENGTH - length)
    return shapes


def read_entries(text: bytes) -> dict[str, Mapping[str, Any]]:
    try:
        header = json.loads(text, object_pairs_hook=each_once)
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON, or says something twice") from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise ValueError("its header is no object of objects")
    entries = {name: entry for name, entry in header.items() if name != METADATA}
    for name, entry in entries.items():
        check_entry(name, entry)
    return entries


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError
    return values


def check_entry(name: str, entry: Mapping[str, Any]) -> None:
    """Raise ValueError for an invalid name of a tensor, or for missing or unknown fields."""
    if not name or not name.isprintable() or len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"the name of a tensor must have 1 to {LONGEST_NAME} bytes that can be printed, one is "
                         f"{name!a:.100}")
    if entry.keys() != FIELDS:
        raise ValueError(f"the entry of {name!a:.100} must have {', '.join(sorted(FIELDS))}, and nothing else")


def read_shape(name: str, entry: Mapping[str, Any]) -> Shape:
    shape = entry["shape"]
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(map(is_size, shape)):
        raise ValueError(f"the shape of {name!a:.100} must be a list of at most {MOST_DIMENSIONS} sizes")
    return tuple(shape)


def read_place(name: str, entry: Mapping[str, Any], shape: Shape) -> Place:
    dtype, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"the dtype of {name!a:.100} must be one of {', '.join(BITS)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_size, offsets)):
        raise ValueError(f"data_offsets of {name!a:.100} must be two places in the file")
    if prod(size or 1 for size in shape) * BITS[dtype] > MOST_BITS:
        raise ValueError(f"{name!a:.100} is {dtype} {list(shape)!r:.100}, more than a tensor can be")
    place = Place(*offsets)
    if (place.end - place.begin) * 8 != prod(shape) * BITS[dtype]:
        raise ValueError(f"{name!a:.100} is {dtype} {list(shape)!r:.100}, which does not fit data_offsets {offsets}")
    return place


def check_places(places: list[Place], size: int) -> None:
    """Raise ValueError unless the ranges cover the `size` bytes of data without gap or overlap."""
    order = sorted(places)
    ends = chain([Place(0, 0)], order, [Place(size, size)])
    if any(one.end != other.begin for one, other in pairwise(ends)):
        raise ValueError(f"its tensors do not fill the {size} bytes behind its header, each its own")


def is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63  # True is an int as well
