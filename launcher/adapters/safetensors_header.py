"""Parser of safetensors headers, for the names and shapes of the tensors.

Raises ValueError for an invalid file. The shards parse the header again, and more strictly.
"""

import json
from collections.abc import Mapping
from itertools import chain, pairwise
from math import prod
from typing import Any, BinaryIO, NamedTuple

LENGTH_FIELD_BYTES = 8  # bytes of the field that holds the header's length
MAX_HEADER_BYTES = 16 * 2**20
MAX_DIMENSIONS = 16
MAX_TENSOR_BITS = 2**66  # per tensor, with empty dimensions counted as 1
MAX_TENSOR_NAME_BYTES = 512  # bytes
METADATA_KEY = "__metadata__"
TENSOR_ENTRY_FIELDS = {"dtype", "shape", "data_offsets"}
DTYPES_BY_BITS = {  # bits per element
    4: "F4", 6: "F6_E2M3 F6_E3M2", 8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "U16 I16 F16 BF16", 32: "U32 I32 F32", 64: "U64 I64 F64 C64"}
BITS_BY_DTYPE = {dtype: bits for bits, dtypes in DTYPES_BY_BITS.items() for dtype in dtypes.split()}

TensorShape = tuple[int, ...]


class TensorByteRange(NamedTuple):
    """Byte range of a tensor's data, counted from the end of the header."""

    begin: int
    end: int


def read_tensor_shapes(file: BinaryIO, file_bytes: int) -> dict[str, TensorShape]:
    """Return the shapes of all tensors by name. `file` is at its beginning and has `size` bytes."""
    length_field = file.read(LENGTH_FIELD_BYTES)
    length, max_length = int.from_bytes(length_field, "little"), min(MAX_HEADER_BYTES, file_bytes - LENGTH_FIELD_BYTES)
    if len(length_field) < LENGTH_FIELD_BYTES or not 2 <= length <= max_length:
        raise ValueError(f"its header must have 2 to {max_length} bytes, it claims {length}")
    entries = parse_header_entries(file.read(length))
    shapes = {name: parse_tensor_shape(name, entry) for name, entry in entries.items()}
    check_byte_ranges([parse_byte_range(name, entry, shapes[name]) for name, entry in entries.items()],
                      file_bytes - LENGTH_FIELD_BYTES - length)
    return shapes


def parse_header_entries(text: bytes) -> dict[str, Mapping[str, Any]]:
    try:
        header = json.loads(text, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON, or says something twice") from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise ValueError("its header is no object of objects")
    entries = {name: entry for name, entry in header.items() if name != METADATA_KEY}
    for name, entry in entries.items():
        check_tensor_entry(name, entry)
    return entries


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError
    return values


def check_tensor_entry(name: str, entry: Mapping[str, Any]) -> None:
    """Raise ValueError for an invalid name of a tensor, or for missing or unknown fields."""
    if not name or not name.isprintable() or len(name.encode()) > MAX_TENSOR_NAME_BYTES:
        raise ValueError(
            f"the name of a tensor must have 1 to {MAX_TENSOR_NAME_BYTES} bytes that can be printed, one is "
                         f"{name!a:.100}")
    if entry.keys() != TENSOR_ENTRY_FIELDS:
        raise ValueError(
            f"the entry of {name!a:.100} must have {', '.join(sorted(TENSOR_ENTRY_FIELDS))}, and nothing else")


def parse_tensor_shape(name: str, entry: Mapping[str, Any]) -> TensorShape:
    shape = entry["shape"]
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(is_valid_size, shape)):
        raise ValueError(f"the shape of {name!a:.100} must be a list of at most {MAX_DIMENSIONS} sizes")
    return tuple(shape)


def parse_byte_range(name: str, entry: Mapping[str, Any], shape: TensorShape) -> TensorByteRange:
    dtype, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS_BY_DTYPE:
        raise ValueError(f"the dtype of {name!a:.100} must be one of {', '.join(BITS_BY_DTYPE)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_valid_size, offsets)):
        raise ValueError(f"data_offsets of {name!a:.100} must be two places in the file")
    if prod(size or 1 for size in shape) * BITS_BY_DTYPE[dtype] > MAX_TENSOR_BITS:
        raise ValueError(f"{name!a:.100} is {dtype} {list(shape)!r:.100}, more than a tensor can be")
    byte_range = TensorByteRange(*offsets)
    if (byte_range.end - byte_range.begin) * 8 != prod(shape) * BITS_BY_DTYPE[dtype]:
        raise ValueError(f"{name!a:.100} is {dtype} {list(shape)!r:.100}, which does not fit data_offsets {offsets}")
    return byte_range


def check_byte_ranges(byte_ranges: list[TensorByteRange], data_bytes: int) -> None:
    """Raise ValueError unless the ranges cover the `size` bytes of data without gap or overlap."""
    sorted_ranges = sorted(byte_ranges)
    ends = chain([TensorByteRange(0, 0)], sorted_ranges, [TensorByteRange(data_bytes, data_bytes)])
    if any(one.end != other.begin for one, other in pairwise(ends)):
        raise ValueError(f"its tensors do not fill the {data_bytes} bytes behind its header, each its own")


def is_valid_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63  # True is an int as well
