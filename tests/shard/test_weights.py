import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tiny_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from shard.weights import Rows, Weights

CPU = torch.device("cpu")
TALL = torch.arange(24.0).view(6, 4)
TENSORS = {"tall": TALL, "other": -TALL[:3], "flat": torch.arange(5).bfloat16(), "half": torch.ones(2).half()}


def opened(folder: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return Weights(folder, dtype, CPU)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_file(TENSORS, folder / "model.safetensors")
    return folder


def file_pages(path: Path) -> int:
    """How much of a mapped file is in this process's memory, in kB."""
    _, _, entry = Path("/proc/self/smaps").read_text().partition(str(path))
    return int(entry.partition("Rss:")[2].split()[0])


# -- slices


@settings(max_examples=30)
@given(first=st.integers(0, 5), count=st.integers(1, 6))
def test_rows_are_cut_and_filled_with_zeros(folder: Path, first: int, count: int) -> None:
    with opened(folder) as weights:
        expected = torch.cat([TALL, torch.zeros(6, 4)])[first:first + count]
        assert torch.equal(weights.rows("tall", (6, 4), range(first, first + count)), expected)


@settings(max_examples=30)
@given(first=st.integers(0, 3), count=st.integers(1, 4))
def test_columns_are_cut(folder: Path, first: int, count: int) -> None:
    columns = range(first, min(4, first + count))
    with opened(folder) as weights:
        read = weights.columns("tall", (6, 4), columns)
    assert torch.equal(read, TALL[:, columns.start:columns.stop])
    assert read.is_contiguous()


def test_rows_of_several_tensors_are_stacked(folder: Path) -> None:
    with opened(folder) as weights:
        read = weights.stack([Rows("tall", (6, 4), range(1, 3)), Rows("other", (3, 4), range(2, 4))])
    assert torch.equal(read, torch.cat([TALL[1:3], -TALL[2:3], torch.zeros(1, 4)]))


@pytest.mark.parametrize("name", ["flat", "half"])
def test_numbers_come_in_the_wanted_type(folder: Path, name: str) -> None:
    with opened(folder) as weights:
        shape = tuple(TENSORS[name].shape)
        assert weights.whole(name, shape).dtype == torch.float32
        assert weights.rows(name, shape, range(2), torch.bfloat16).dtype == torch.bfloat16
        assert weights.dtype_of(name) == TENSORS[name].dtype


@pytest.mark.parametrize("indexed", [False, True])
def test_all_of_a_checkpoint_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, indexed: bool) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", dtype="bfloat16", indexed=indexed)
    expected: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        expected |= load_file(path)
    with opened(folder, torch.bfloat16) as weights:
        assert weights.unclaimed() == sorted(expected)
        assert all(torch.equal(weights.whole(name, tuple(one.shape)), one) for name, one in expected.items())
        assert weights.unclaimed() == []


def test_what_is_of_no_use_counts_as_claimed(folder: Path) -> None:
    with opened(folder) as weights:
        weights.ignore("tall")
        weights.ignore("not there")
        weights.whole("flat", (5,))
        assert weights.unclaimed() == ["half", "other"]


def test_pages_of_the_file_leave_memory_once_they_were_copied(tmp_path: Path) -> None:
    save_file({"large": torch.ones(1000, 1000)}, tmp_path / "model.safetensors")
    with opened(tmp_path) as weights:
        assert float(weights.whole("large", (1000, 1000)).sum()) == 1e6
        assert float(weights.columns("large", (1000, 1000), range(10)).sum()) == 1e4
        assert file_pages(tmp_path / "model.safetensors") < 100


# -- what is wrong with a folder


def test_a_missing_tensor_is_named(folder: Path) -> None:
    with opened(folder) as weights, pytest.raises(ValueError, match=r"lacks norm.weight"):
        weights.whole("norm.weight", (4,))


def test_a_tensor_of_another_shape_is_named_with_both(folder: Path) -> None:
    with (opened(folder) as weights,
          pytest.raises(ValueError, match=r"model.safetensors: tall is \[6, 4\], config.json asks for \[4, 6\]")):
        weights.columns("tall", (4, 6), range(1))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"as pytorch_model.bin, which can run code .*supported: safetensors"):
        opened(tmp_path)


def test_a_file_that_the_index_names_and_is_not_there_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"tall": "model-1-of-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"lacks model-1-of-2.safetensors; is the download complete\?"):
        opened(tmp_path)


def written(folder: Path, header: dict[str, Any], numbers: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + numbers)
    return folder


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    header = {"tall": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    with pytest.raises(ValueError, match="ends 3 bytes before tall does; is the download complete"):
        opened(written(tmp_path, header, b"12345"))


def test_a_type_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    header = {"tall": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
    with pytest.raises(ValueError, match="tall is stored as F8_E4M3; supported: F32, BF16, F16"):
        opened(written(tmp_path, header, b"12"))


@pytest.mark.parametrize(("numbers", "complaint"), [
    (b"", "has no header"), (b"123", "has no header"), (b"\x05\0\0\0\0\0\0\0{{{{{", "is damaged")])
def test_a_file_without_a_header_is_refused(tmp_path: Path, numbers: bytes, complaint: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(numbers)
    with pytest.raises(ValueError, match=complaint):
        opened(tmp_path)
