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
from support.adapter_files import WEIGHTS, adapter_files
from support.header_mutations import KINDS, mutate, put_together

from launcher.adapters.header import BITS, MOST_BYTES, Shape, read_shapes
from shard.checkpoint import safetensors_header as strict


def shapes(content: bytes) -> dict[str, Shape]:
    return read_shapes(BytesIO(content), len(content))


def refusal(content: bytes) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        shapes(content)
    return str(refused.value)


def one(**changes: Any) -> bytes:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes
    return put_together({"a": entry}, bytes(24))


def test_what_safetensors_writes_is_read() -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.bfloat16), "c": torch.zeros(0, 4)}
    assert shapes(save(tensors, {"format": "pt"})) == {"a": (2, 3), "b": (5,), "c": (0, 4)}


def test_number_types_are_those_of_the_shard() -> None:
    assert BITS == strict.BITS


@pytest.mark.parametrize(("content", "why"), [
    (b"", r"claims 0"),
    (b"1234567", r"2 to -1 bytes"),
    (struct.pack("<Q", 1) + b"{}", "claims 1"),
    (struct.pack("<Q", 3) + b"{}", "2 to 2 bytes, it claims 3"),
    (struct.pack("<Q", MOST_BYTES + 1) + b" " * (MOST_BYTES + 1), f"to {MOST_BYTES} bytes"),
    (put_together("{", b""), "2 to 1 bytes"),
    (put_together("[]", b""), "no object of objects"),
    (put_together('{"a": 5}', b""), "no object of objects"),
    (put_together('{"a": [' * 50_000, b""), "is not JSON"),
    (put_together('{"a": ' + "9" * 5000 + "}", b""), "is not JSON"),
    (one(shape=[2, True]), "the shape of 'a'"),
    (one(shape=[1] * 17), "at most 16 sizes"),
    (one(shape=[2**63]), "the shape of 'a'"),
    (one(shape=[0, 2**62]), "more than a tensor can be"),
    (one(dtype="F33"), "the dtype of 'a' must be one of F4"),
    (one(more=5), "the entry of 'a' must have data_offsets, dtype, shape, and nothing else"),
    (put_together({"": {}}, b""), "1 to 512 bytes that can be printed, one is ''"),
    (put_together({"a\n": {}}, b""), "one is 'a"),
    (put_together({"x" * 600: {}}, b""), "1 to 512 bytes"),
    (put_together('{"a": {}, "a": {}}', b""), "says something twice"),
    (one(data_offsets=[0]), "data_offsets of 'a'"),
    (one(data_offsets=[24, 0]), "does not fit"),
    (one(data_offsets=[1, 25]), "do not fill the 24 bytes"),
    (one(shape=[3, 3]), "does not fit"),
    (one() + b"more", "do not fill the 28 bytes"),
])
def test_what_is_wrong_is_told(content: bytes, why: str) -> None:
    assert why.replace("\\", "") in refusal(content)


def accepted(content: bytes) -> dict[str, Shape] | None:
    try:
        return shapes(content)
    except ValueError:
        return None


def accepted_by_the_shard(content: bytes) -> dict[str, Shape] | None:
    try:
        length = strict.read_length(content, len(content))
        return {name: entry.shape for name, entry in strict.read_entries(content[8:8 + length], len(content)).items()}
    except ValueError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_shard_reads_is_never_refused_and_the_rest_almost_always(kind: str) -> None:
    """A shard also checks the spelling of an entry, so it rejects a few more files."""
    content, num_let_pass = adapter_files()[WEIGHTS], 0
    for seed in range(125):
        changed = mutate(content, kind, Random(f"{kind} {seed}")).content
        ours, theirs = accepted(changed), accepted_by_the_shard(changed)
        assert theirs is None or ours == theirs
        num_let_pass += ours is not None and theirs is None
    assert num_let_pass <= (5 if kind in {"flip", "rename"} else 0)


def test_a_file_may_be_longer_than_memory(tmp_path: Path) -> None:
    """Only the header is read."""
    size = 2**40
    text = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    path = tmp_path / "large"
    path.write_bytes(put_together(text, b""))
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + size)
        file.seek(0)
        assert read_shapes(file, 8 + len(text) + size) == {"a": (size,)}
