import errno
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from io import BytesIO
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from shard.checkpoint import safetensors_file
from shard.checkpoint.reader import CheckpointReader, RowSelection
from shard.checkpoint.safetensors_file import (
    BITS_BY_DTYPE,
    TensorEntry,
    open_safetensors,
    parse_tensor_entries,
    read_file_header,
    read_header_length,
)

TALL_ENTRY = {"dtype": "F32", "shape": [6, 4], "data_offsets": [0, 96]}
FLAT_ENTRY = {"dtype": "BF16", "shape": [2], "data_offsets": [96, 100]}
NUM_DATA_BYTES = 100


def read_header(header: str | bytes | dict[str, Any], num_bytes: int = NUM_DATA_BYTES) -> dict[str, TensorEntry]:
    written = json.dumps(header) if isinstance(header, dict) else header
    encoded = written.encode() if isinstance(written, str) else written
    return parse_tensor_entries(encoded, 8 + len(encoded) + num_bytes)


def make_changed_header(**fields: Any) -> dict[str, Any]:
    return {"tall": TALL_ENTRY | fields, "flat": FLAT_ENTRY}


def get_header_error(header: str | bytes | dict[str, Any], num_bytes: int = NUM_DATA_BYTES) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        read_header(header, num_bytes)
    return str(caught.value)


def test_entries_hold_dtype_shape_and_file_offsets() -> None:
    text = json.dumps({"__metadata__": {"format": "pt"}, "tall": TALL_ENTRY, "flat": FLAT_ENTRY})
    data_start = 8 + len(text)
    assert read_header(text) == {"tall": TensorEntry("F32", (6, 4), data_start, data_start + 96),
                                 "flat": TensorEntry("BF16", (2,), data_start + 96, data_start + 100)}


@pytest.mark.parametrize("text", ["{}", "{  }   ", '{"__metadata__": {}}', '{ "__metadata__" : { } }\n'])
def test_a_header_may_be_empty(text: str) -> None:
    assert read_header(text, 0) == {}


@pytest.mark.parametrize("metadata", [
    '{"a": "b", "c": "{\\"d\\": [1, 2, {}]}"}', '{"": ""}', '{"a" :"}" , "b": "\\\\"\t}'])
def test_metadata_with_any_strings_is_ignored(metadata: str) -> None:
    assert list(read_header(f'{{"__metadata__": {metadata}, "tall": {json.dumps(TALL_ENTRY)}}}', 96)) == ["tall"]


@pytest.mark.parametrize("metadata", [
    '{"a": 1}', "[]", '{"a": {}}', '{"a": "b",}', '{"a": "b" "c": "d"}', '{"a": "b", "c"}', '{"a": "b', '{"a"}',
    '{"a":}'])
def test_metadata_that_is_no_object_of_strings_is_rejected(metadata: str) -> None:
    assert "the entry of __metadata__, at byte 25, is damaged" in get_header_error(f'{{"__metadata__": {metadata}}}')


PRINTABLE_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(
    lambda name: name.isprintable() and name != "__metadata__")


@settings(max_examples=30)
@given(st.dictionaries(PRINTABLE_NAMES, st.lists(st.integers(0, 5), max_size=4)))
def test_any_printable_name_is_accepted(shapes: dict[str, list[int]]) -> None:
    offset, given_header = 0, {}
    for name, shape in shapes.items():
        given_header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [offset, offset := offset + prod(shape)]}
    for ascii_only in (True, False):
        assert list(read_header(json.dumps(given_header, ensure_ascii=ascii_only), offset)) == list(given_header)


@pytest.mark.parametrize("dtype", BITS_BY_DTYPE)
def test_every_dtype_of_the_format_is_supported(dtype: str) -> None:
    entry = {"dtype": dtype, "shape": [8], "data_offsets": [0, BITS_BY_DTYPE[dtype]]}
    assert read_header({"any": entry}, BITS_BY_DTYPE[dtype])["any"].dtype == dtype


def test_files_written_by_safetensors_are_read() -> None:
    kinds = [torch.bool, torch.int8, torch.uint16, torch.float8_e4m3fn, torch.float16, torch.complex64, torch.float64]
    content = save({str(kind): torch.zeros(3, 5).to(kind) for kind in kinds}, {"a": "ü"})
    length = read_header_length(content[:8], len(content))
    entries = parse_tensor_entries(content[8:8 + length], len(content))
    assert {name: (entry.shape, entry.end - entry.begin) for name, entry in entries.items()} == {
        str(kind): ((3, 5), 15 * kind.itemsize) for kind in kinds}


def test_only_the_header_of_a_file_is_read() -> None:
    """The file has no data here; it would be larger than memory."""
    size = 2**40
    text = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    file = BytesIO(struct.pack("<Q", len(text)) + text)
    start = 8 + len(text)
    assert read_file_header(file, start + size) == {"a": TensorEntry("U8", (size,), start, start + size)}


# -- the length


@pytest.mark.parametrize(("length", "complaint"), [
    (0, "must take 2 to 100000000 bytes, it claims 0"), (1, "it claims 1"), (100_000_001, "it claims 100000001"),
    (2**64 - 1, "it claims 18446744073709551615"),
    (93, r"claims 93 bytes, the file has 92 after its length; is the download complete\?")])
def test_impossible_header_length_is_rejected(length: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_header_length(struct.pack("<Q", length), 100)


@pytest.mark.parametrize("size", [0, 7])
def test_file_without_a_header_length_is_rejected(size: int) -> None:
    with pytest.raises(ValueError, match=f"has no header, only {size} bytes"):
        read_header_length(bytes(size), size)


# -- the text


@pytest.mark.parametrize(("text", "complaint"), [
    (b"{{{{{", "damaged at byte 9 of the file: a name in quotes and a colon come there"),
    (b" {}", "damaged at byte 8 of the file: a header begins with {"),
    (b"[]", "a header begins with {"), (b"", "a header begins with {"), (b"{}{}", "a name in quotes"),
    (b"{\0}", "a name in quotes"), (b'{"a', "a name in quotes"), (b'{"a": ', "the entry of a, at byte 14, is damaged"),
    (b'{"\xff": {}}', "the name is not JSON"), (b'{"\\x": {}}', "the name is not JSON"),
    (b'{"": {}}', "printable characters, this one is ''"),
    (b'{"\\ud800": {}}', r"printable characters, this one is '\ud800'"),
    (b'{"a\\nb": {}}', r"printable characters, this one is 'a\nb'"),
    (b'{"%s": {}}' % (b"x" * 513), "a name must have at most 512 bytes, one has 513"),
    (b'{"a": {"dtype": {}}}', "the entry of a, at byte 14, is damaged: it must be an object of at most 4096 bytes"),
    (b'{"a": {%s}}' % (b" " * 4095), "the entry of a, at byte 14, is damaged"),
    (b'{"a": {"dtype" "F32"}}', "the entry of a is damaged: Expecting ':'"),
    (b'{"a": {"dtype": "\xff"}}', "the entry of a is damaged: 'utf-8' codec"),
    (b'{"a": {"shape": %s}}' % (b"[" * 4000), "the entry of a")])
def test_invalid_header_text_is_rejected(text: bytes, complaint: str) -> None:
    assert complaint in get_header_error(text)


def test_unexpected_text_after_an_entry_is_rejected() -> None:
    text = json.dumps({"tall": TALL_ENTRY})
    for wrong in (text + "x", text + "\0", text[:-1], text[:-1] + "]", text[:-1] + ",}", text[:-1] + '"a": {}}'):
        assert re.search("after the entry of tall comes another, or the header ends|a name in quotes",
                         get_header_error(wrong))


@pytest.mark.parametrize("again", ["tall", r"\u0074all"])
def test_tensor_with_two_entries_is_rejected(again: str) -> None:
    assert get_header_error(
        f'{{"tall": {json.dumps(TALL_ENTRY)}, "{again}": {json.dumps(TALL_ENTRY)}}}') == "tall has two entries"


def test_too_many_tensors_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "MAX_TENSORS", 2)
    assert "more than 2 entries; the first too many is c" in get_header_error(
        {name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for name in "abc"}, 0)


# -- one entry


@pytest.mark.parametrize(("fields", "complaint"), [
    ({"dtype": "F33"}, "the dtype of tall must be one of BOOL, U8, .*, C64, got 'F33'"),
    ({"dtype": None}, "the dtype of tall must be one of .* got None"),
    ({"shape": "6, 4"}, "the shape of tall must be a list, got '6, 4'"),
    ({"shape": [6, 4.0]}, "dimension 1 of tall must be a whole number from 0 to 9223372036854775807, got 4.0"),
    ({"shape": [True, 4]}, "dimension 0 of tall .* got True"), ({"shape": [-6, -4]}, "dimension 0 of tall .* got -6"),
    ({"shape": [2**63]}, "dimension 0 of tall .* got 9223372036854775808"),
    ({"shape": [1] * 17}, "tall must have at most 16 dimensions, it has 17"),
    ({"shape": [2**32, 2**32]}, r"tall is F32 \[4294967296, 4294967296\], more than the 9223372036854775807 bytes"),
    ({"shape": [0, 2**62, 2**62]}, "tall is F32 .* more than the 9223372036854775807 bytes"),
    ({"shape": [7, 4]}, r"tall is F32 \[7, 4\], which takes 112 bytes; its data_offsets \[0, 96\] have 96"),
    ({"dtype": "F4", "shape": [191]}, r"tall is F4 \[191\], which is not a whole number of bytes"),
    ({"data_offsets": [0]}, r"data_offsets of tall must be two whole numbers from 0 to \d+, got \[0\]"),
    ({"data_offsets": [0, 96.0]}, r"data_offsets of tall .* got \[0, 96.0\]"),
    ({"data_offsets": [-1, 95]}, r"data_offsets of tall .* got \[-1, 95\]"),
    ({"data_offsets": [96, 0]}, r"data_offsets of tall must not go backwards, got \[96, 0\]"),
    ({"strides": [4, 1]}, "the entry of tall must have data_offsets, dtype, shape, each once and nothing else; it has "
     r"\['dtype', 'shape', 'data_offsets', 'strides'\]")])
def test_invalid_entry_is_rejected_by_name(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        read_header(make_changed_header(**fields))


def test_repeated_field_is_rejected() -> None:
    text = json.dumps(make_changed_header()).replace('"F32",', '"F32", "dtype": "F32",')
    assert "the entry of tall must have data_offsets, dtype, shape, each once" in get_header_error(text)


# -- all entries together


@pytest.mark.parametrize(("fields", "num_bytes", "complaint"), [
    ({"data_offsets": [4, 100]}, NUM_DATA_BYTES, "flat begins 4 bytes before tall ends"),
    ({"shape": [23], "data_offsets": [4, 96]}, NUM_DATA_BYTES,
     "4 bytes between the header and tall belong to no tensor"),
    ({"shape": [25], "data_offsets": [0, 100]}, NUM_DATA_BYTES, "flat begins 4 bytes before tall ends"),
    ({"shape": [23], "data_offsets": [0, 92]}, NUM_DATA_BYTES, "4 bytes between tall and flat belong to no tensor"),
    ({"shape": [0], "data_offsets": [98, 98]}, NUM_DATA_BYTES, "tall begins 2 bytes before flat ends"),
    ({}, 103, "3 bytes behind flat, where the last tensor ends, belong to no tensor"),
    ({}, 97, "the file ends 3 bytes before flat does; is the download complete?")])
def test_every_byte_belongs_to_one_tensor(fields: dict[str, Any], num_bytes: int, complaint: str) -> None:
    assert get_header_error(make_changed_header(**fields), num_bytes) == complaint


# -- memory


@pytest.mark.parametrize("text", [
    b'{"a": ' + b"[" * 3_000_000, b'{"a": {"shape": [' + b"[]," * 1_000_000, b'{"' + b"\\n" * 1_500_000,
    b'{"__metadata__": {' + b'"a":"",' * 400_000, b'{"__metadata__": {"a": "' + b'\\"' * 1_500_000,
    b"{" + b" " * 3_000_000, b'{"a": {' + b" " * 3_000_000, b'{"a": {"b": ' * 200_000])
def test_parsing_a_long_invalid_header_needs_little_memory(text: bytes) -> None:
    tracemalloc.start()
    try:
        get_header_error(text)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(text)
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------------------------------------------------------
# An open file


CPU = torch.device("cpu")
TENSOR_SHAPE = (300, 400)
TENSORS = {"first": torch.ones(TENSOR_SHAPE), "second": torch.ones(TENSOR_SHAPE)}
READ_METHODS: dict[str, Callable[[CheckpointReader, str], object]] = {
    "whole": lambda weights, name: weights.read_tensor(name, TENSOR_SHAPE),
    "rows": lambda weights, name: weights.read_rows(name, TENSOR_SHAPE, range(200)),
    "stack": lambda weights, name: weights.read_stacked_rows([RowSelection(name, TENSOR_SHAPE, range(1, 3)),
                                                              RowSelection(name, TENSOR_SHAPE, range(99, 400))]),
    "columns": lambda weights, name: weights.read_columns(name, TENSOR_SHAPE, range(3)),
}


@pytest.fixture
def weights_file(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def make_truncating_preadv(path: Path, num_bytes_left: int, num_reads_before: int) -> Callable[..., int]:
    """Return a `preadv` that truncates the file to `num_bytes_left` bytes after `num_reads_before` reads."""
    preadv, num_left = os.preadv, num_reads_before

    def truncating_preadv(*arguments: object) -> int:
        nonlocal num_left
        if not num_left:
            os.truncate(path, num_bytes_left)
        num_left -= 1
        return preadv(*arguments)  # type: ignore[arg-type]
    return truncating_preadv


def test_tensor_bytes_are_read_from_their_offset(weights_file: Path) -> None:
    memory = bytearray(8)
    with open_safetensors(weights_file) as file:
        assert ({name: entry.shape for name, entry in file.entries.items()}
                == {"first": TENSOR_SHAPE, "second": TENSOR_SHAPE})
        file.read_bytes_into("first", file.entries["first"].begin + 4, memoryview(memory))
    assert memory == TENSORS["first"][0, 1:3].numpy().tobytes()


def test_short_reads_are_continued(weights_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda number, buffers, place: preadv(number, [buffers[0][:1000]], place))
    with CheckpointReader(weights_file.parent, torch.float32, CPU) as weights:
        assert torch.equal(weights.read_tensor("second", TENSOR_SHAPE), TENSORS["second"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("read", READ_METHODS)
def test_file_truncated_after_opening_is_rejected(weights_file: Path, read: str, dtype: torch.dtype) -> None:
    content, random = weights_file.read_bytes(), Random(read)
    for _ in range(20):
        weights_file.write_bytes(content)
        with CheckpointReader(weights_file.parent, dtype, CPU) as weights:
            os.truncate(weights_file, random.randrange(len(content)))
            for name in TENSORS:
                with pytest.raises(ValueError,
                                   match=rf"{weights_file}.* {name}.* had {len(content)} bytes when it was opened"):
                    READ_METHODS[read](weights, name)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("read", READ_METHODS)
def test_file_truncated_while_reading_is_rejected(
        weights_file: Path, monkeypatch: pytest.MonkeyPatch, read: str, after: int) -> None:
    with CheckpointReader(weights_file.parent, torch.bfloat16, CPU) as weights:
        monkeypatch.setattr(os, "preadv", make_truncating_preadv(weights_file, 1000, after))
        with pytest.raises(ValueError, match=rf"{weights_file}.* first.* when it was opened"):
            READ_METHODS[read](weights, "first")


@pytest.mark.parametrize(("place", "after", "ends"), [(0, 0, 0), (4, 0, 4), (30, 1, 30), (4, 1, 8)])
def test_file_truncated_before_its_header_was_read_is_rejected(
        weights_file: Path, monkeypatch: pytest.MonkeyPatch, place: int, after: int, ends: int) -> None:
    monkeypatch.setattr(os, "preadv", make_truncating_preadv(weights_file, place, after))
    with pytest.raises(ValueError, match=rf"^{weights_file} ends at byte {ends}, within its header"), open_safetensors(
        weights_file):
        pass


def test_rewritten_file_is_rejected(weights_file: Path) -> None:
    with CheckpointReader(weights_file.parent, torch.float32, CPU) as weights:
        weights.read_tensor("first", TENSOR_SHAPE)
        weights_file.write_bytes(weights_file.read_bytes())
        os.utime(weights_file, ns=(0, 0))  # clocks may be coarse
        with pytest.raises(ValueError,
                           match=rf"{weights_file} was changed while second was read: it had \d+ bytes .* and has"):
            weights.read_tensor("second", TENSOR_SHAPE)


def test_replaced_file_is_still_read_to_its_end(weights_file: Path) -> None:
    with CheckpointReader(weights_file.parent, torch.float32, CPU) as weights:
        (weights_file.parent / "other").write_bytes(b"other")
        (weights_file.parent / "other").rename(weights_file)
        assert torch.equal(weights.read_tensor("first", TENSOR_SHAPE), TENSORS["first"])


def test_disk_error_is_reported_with_file_and_tensor(weights_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_error(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")
    with CheckpointReader(weights_file.parent, torch.float32, CPU) as weights:
        monkeypatch.setattr(safetensors_file.os, "preadv", raise_disk_error)
        with pytest.raises(ValueError, match=rf"^{weights_file}: first cannot be read: Input/output error$"):
            weights.read_tensor("first", TENSOR_SHAPE)


@pytest.mark.slow
def test_shard_exits_with_one_line_about_a_truncated_file(
        tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shutil.copytree(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama"), tmp_path, dirs_exist_ok=True)
    broken = tmp_path / "model.safetensors"
    os.truncate(broken, broken.stat().st_size - 100)
    config = json.dumps({"socket": f"unix:{tmp_path}/shard", "model": str(tmp_path)})
    shard = subprocess.run([sys.executable, "-P", "-m", "shard.rpc.server", config], capture_output=True, text=True,
                           check=False)
    assert shard.returncode == 2  # a restart would not help
    assert re.fullmatch(rf"weft: {broken}: the file ends 100 bytes before \S+ does; is the download complete\?\n",
                        shard.stderr)
