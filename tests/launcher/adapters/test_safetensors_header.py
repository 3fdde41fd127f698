"""Tests of reading the header of safetensors files and of rejecting other files."""

import json
import struct
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import save
from support.checkpoints.adapter_files import WEIGHTS_FILE, make_adapter_files
from support.checkpoints.header_mutations import MUTATION_KINDS, join_safetensors, mutate_file

from launcher.adapters.safetensors_header import BITS_BY_DTYPE, MAX_HEADER_BYTES, TensorShape, read_tensor_shapes
from shard.checkpoint import safetensors_header as strict


def read_shapes_from_bytes(content: bytes) -> dict[str, TensorShape]:
    return read_tensor_shapes(BytesIO(content), len(content))


def get_error_text(content: bytes) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        read_shapes_from_bytes(content)
    return str(refused.value)


def make_one_tensor_file(**entry_changes: Any) -> bytes:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | entry_changes
    return join_safetensors({"a": entry}, bytes(24))


def test_files_written_by_safetensors_are_read() -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.bfloat16), "c": torch.zeros(0, 4)}
    assert read_shapes_from_bytes(save(tensors, {"format": "pt"})) == {"a": (2, 3), "b": (5,), "c": (0, 4)}


def test_dtypes_match_those_of_the_shard() -> None:
    assert BITS_BY_DTYPE == strict.BITS_BY_DTYPE


@pytest.mark.parametrize(("content", "message"), [
    (b"", r"claims 0"),
    (b"1234567", r"2 to -1 bytes"),
    (struct.pack("<Q", 1) + b"{}", "claims 1"),
    (struct.pack("<Q", 3) + b"{}", "2 to 2 bytes, it claims 3"),
    (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b" " * (MAX_HEADER_BYTES + 1), f"to {MAX_HEADER_BYTES} bytes"),
    (join_safetensors("{", b""), "2 to 1 bytes"),
    (join_safetensors("[]", b""), "no object of objects"),
    (join_safetensors('{"a": 5}', b""), "no object of objects"),
    (join_safetensors('{"a": [' * 50_000, b""), "is not JSON"),
    (join_safetensors('{"a": ' + "9" * 5000 + "}", b""), "is not JSON"),
    (make_one_tensor_file(shape=[2, True]), "the shape of 'a'"),
    (make_one_tensor_file(shape=[1] * 17), "at most 16 sizes"),
    (make_one_tensor_file(shape=[2**63]), "the shape of 'a'"),
    (make_one_tensor_file(shape=[0, 2**62]), "more than a tensor can be"),
    (make_one_tensor_file(dtype="F33"), "the dtype of 'a' must be one of F4"),
    (make_one_tensor_file(more=5), "the entry of 'a' must have data_offsets, dtype, shape, and nothing else"),
    (join_safetensors({"": {}}, b""), "1 to 512 bytes that can be printed, one is ''"),
    (join_safetensors({"a\n": {}}, b""), "one is 'a"),
    (join_safetensors({"x" * 600: {}}, b""), "1 to 512 bytes"),
    (join_safetensors('{"a": {}, "a": {}}', b""), "says something twice"),
    (make_one_tensor_file(data_offsets=[0]), "data_offsets of 'a'"),
    (make_one_tensor_file(data_offsets=[24, 0]), "does not fit"),
    (make_one_tensor_file(data_offsets=[1, 25]), "do not fill the 24 bytes"),
    (make_one_tensor_file(shape=[3, 3]), "does not fit"),
    (make_one_tensor_file() + b"more", "do not fill the 28 bytes"),
])
def test_invalid_headers_are_reported(content: bytes, message: str) -> None:
    assert message.replace("\\", "") in get_error_text(content)


def read_shapes_or_none(content: bytes) -> dict[str, TensorShape] | None:
    try:
        return read_shapes_from_bytes(content)
    except ValueError:
        return None


def read_shapes_like_a_shard(content: bytes) -> dict[str, TensorShape] | None:
    try:
        length = strict.read_header_length(content, len(content))
        return {name: entry.shape
                for name, entry in strict.read_tensor_entries(content[8:8 + length], len(content)).items()}
    except ValueError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", MUTATION_KINDS)
def test_all_files_that_a_shard_accepts_and_few_others_are_accepted(kind: str) -> None:
    """A shard also checks the spelling of an entry, so it rejects a few more files."""
    content, num_only_launcher_accepts = make_adapter_files()[WEIGHTS_FILE], 0
    for seed in range(125):
        changed = mutate_file(content, kind, Random(f"{kind} {seed}")).content
        launcher_shapes, shard_shapes = read_shapes_or_none(changed), read_shapes_like_a_shard(changed)
        assert shard_shapes is None or launcher_shapes == shard_shapes
        num_only_launcher_accepts += launcher_shapes is not None and shard_shapes is None
    assert num_only_launcher_accepts <= (5 if kind in {"flip", "rename"} else 0)


def test_header_of_a_file_larger_than_memory_is_read(tmp_path: Path) -> None:
    """Only the header is read."""
    size = 2**40
    text = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    path = tmp_path / "large"
    path.write_bytes(join_safetensors(text, b""))
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + size)
        file.seek(0)
        assert read_tensor_shapes(file, 8 + len(text) + size) == {"a": (size,)}
