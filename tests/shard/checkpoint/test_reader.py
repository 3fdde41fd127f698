import json
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.checkpoints.header_mutations import MUTATION_KINDS, mutate_file
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.process_memory import needs_less_memory
from torch import Tensor

from shard.checkpoint.reader import PACKED_DTYPES, CheckpointReader, RowSelection

CPU = torch.device("cpu")
TALL_TENSOR = torch.arange(24.0).view(6, 4)
NUM_MUTATIONS = 125  # of each kind, 2,000 together
POSSIBLY_HARMLESS_KINDS = {"flip", "add"}  # kinds that may have no effect
TENSORS = {"tall": TALL_TENSOR, "other": -TALL_TENSOR[:3], "flat": torch.arange(5).bfloat16(),
           "half": torch.ones(2).half(), "mask": torch.ones(1, 4, 4, dtype=torch.bool)}


def open_weights(folder: Path, dtype: torch.dtype = torch.float32) -> CheckpointReader:
    return CheckpointReader(folder, dtype, CPU)


@pytest.fixture(scope="module")
def weights_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_file(TENSORS, folder / "model.safetensors")
    return folder


# -- slices


@settings(max_examples=30)
@given(first=st.integers(0, 5), count=st.integers(1, 6))
def test_rows_are_sliced_and_padded_with_zeros(weights_folder: Path, first: int, count: int) -> None:
    with open_weights(weights_folder) as weights:
        expected = torch.cat([TALL_TENSOR, torch.zeros(6, 4)])[first:first + count]
        assert torch.equal(weights.read_rows("tall", (6, 4), range(first, first + count)), expected)


@settings(max_examples=30)
@given(first=st.integers(0, 3), count=st.integers(1, 4))
def test_columns_are_sliced(weights_folder: Path, first: int, count: int) -> None:
    columns = range(first, min(4, first + count))
    with open_weights(weights_folder) as weights:
        read = weights.read_columns("tall", (6, 4), columns)
    assert torch.equal(read, TALL_TENSOR[:, columns.start:columns.stop])
    assert read.is_contiguous()


def test_weights_stored_transposed_are_transposed_back(weights_folder: Path) -> None:
    with open_weights(weights_folder) as weights:
        rows = weights.read_stacked_rows([RowSelection("tall", (4, 6), row_range, transposed=True)
                                          for row_range in (range(1, 3), range(1))])
        columns = weights.read_columns("tall", (4, 6), range(2, 5), transposed=True)
    assert torch.equal(rows, TALL_TENSOR.T[[1, 2, 0]])
    assert torch.equal(columns, TALL_TENSOR.T[:, 2:5])
    assert rows.is_contiguous()
    assert columns.is_contiguous()


def test_weights_report_which_tensors_they_hold(weights_folder: Path) -> None:
    with open_weights(weights_folder) as weights:
        assert weights.has_tensor("tall")
        assert not weights.has_tensor("short")
        assert "tall" in weights.list_unclaimed_names()


def test_rows_of_several_tensors_are_stacked(weights_folder: Path) -> None:
    with open_weights(weights_folder) as weights:
        read = weights.read_stacked_rows([RowSelection("tall", (6, 4), range(1, 3)),
                                          RowSelection("other", (3, 4), range(2, 4))])
    assert torch.equal(read, torch.cat([TALL_TENSOR[1:3], -TALL_TENSOR[2:3], torch.zeros(1, 4)]))


@pytest.mark.parametrize("name", ["flat", "half"])
def test_tensors_are_converted_to_the_requested_dtype(weights_folder: Path, name: str) -> None:
    with open_weights(weights_folder) as weights:
        shape = tuple(TENSORS[name].shape)
        assert weights.read_tensor(name, shape).dtype == torch.float32
        assert weights.read_rows(name, shape, range(2), torch.bfloat16).dtype == torch.bfloat16
        assert weights.stored_dtype(name) == TENSORS[name].dtype


@pytest.mark.parametrize(("names", "dtype"), [
    (["half"], torch.float16), (["tall"], torch.float32), (["tall", "half"], None),
    (["half", "nowhere"], None)])
def test_common_dtype_is_that_of_all(weights_folder: Path, names: list[str], dtype: torch.dtype | None) -> None:
    with open_weights(weights_folder) as weights:
        assert weights.find_common_dtype(names) == dtype


@pytest.mark.parametrize("indexed", [False, True])
def test_whole_checkpoint_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, indexed: bool) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", dtype="bfloat16", indexed=indexed)
    expected: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        expected |= load_file(path)
    with open_weights(folder, torch.bfloat16) as weights:
        assert weights.list_unclaimed_names() == sorted(expected)
        assert all(torch.equal(weights.read_tensor(name, tuple(tensor.shape)), tensor)
                   for name, tensor in expected.items())
        assert weights.list_unclaimed_names() == []


def test_read_progress_counts_each_tensor_once(weights_folder: Path) -> None:
    progress: list[tuple[int, int]] = []
    with CheckpointReader(weights_folder, torch.float32, torch.device("cpu"),
                          on_progress=lambda *report: progress.append(report)) as weights:
        weights.read_tensor("flat", (5,))
        weights.stored_dtype("tall")
        weights.read_tensor("tall", (6, 4))
    sizes = {name: tensor.nbytes for name, tensor in TENSORS.items()}
    assert [done for done, _ in progress] == [sizes["flat"], sizes["flat"] + sizes["tall"]]
    assert {total for _, total in progress} == {sum(sizes.values())}


def test_ignored_tensors_count_as_claimed(weights_folder: Path) -> None:
    with open_weights(weights_folder) as weights:
        weights.ignore_tensor("tall")
        weights.ignore_tensor("not there")
        weights.read_tensor("flat", (5,))
        assert weights.list_unclaimed_names() == ["half", "mask", "other"]
        weights.ignore_prefix("ot")
        assert weights.list_unclaimed_names() == ["half", "mask"]
        assert weights.has_tensor("tall")
        assert not weights.has_tensor("not there")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reading_needs_no_memory_beyond_the_result(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"large": torch.ones(2000, 2000)}, tmp_path / "model.safetensors")
    with open_weights(tmp_path, dtype) as weights:
        assert needs_less_memory(4e6 * dtype.itemsize + 2e6, lambda: weights.read_tensor("large", (2000, 2000)))
        assert needs_less_memory(1e6 * dtype.itemsize + 2e6,
                                 lambda: weights.read_columns("large", (2000, 2000), range(500)))
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(500, 100), (9, 20_000)])
def test_tensors_larger_than_the_staging_buffer_are_read_completely(
        tmp_path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
    large = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    save_file({"large": large}, tmp_path / "model.safetensors")
    with open_weights(tmp_path, dtype) as weights:
        assert torch.equal(weights.read_tensor("large", shape), large.to(dtype))
        assert torch.equal(weights.read_rows("large", shape, range(3, 8)), large[3:8].to(dtype))
        for columns in (range(7, 60), range(1, shape[1]), range(0)):
            read = weights.read_columns("large", shape, columns)
            assert torch.equal(read, large[:, columns.start:columns.stop].to(dtype))


@pytest.mark.parametrize("name", PACKED_DTYPES)
def test_packed_tensors_are_read_in_their_stored_dtype(tmp_path: Path, name: str) -> None:
    dtype = PACKED_DTYPES[name]
    packed = torch.arange(24).view(6, 4).to(dtype)
    save_file({"packed": packed, "scale": torch.tensor(0.5)}, tmp_path / "model.safetensors")
    with open_weights(tmp_path) as weights:
        assert weights.stored_dtype("packed") is dtype
        assert weights.read_tensor("scale", ()) == 0.5
        for read, expected in ((weights.read_tensor("packed", (6, 4), dtype), packed),
                               (weights.read_rows("packed", (6, 4), range(2, 5), dtype), packed[2:5]),
                               (weights.read_columns("packed", (6, 4), range(1, 3), dtype), packed[:, 1:3])):
            assert read.dtype is dtype
            assert torch.equal(read.float(), expected.float())


@pytest.mark.parametrize("read", [lambda weights: weights.read_tensor("packed", (4, 2)),
                                  lambda weights: weights.read_rows("packed", (4, 2), range(1)),
                                  lambda weights: weights.read_columns("packed", (4, 2), range(1)),
                                  lambda weights: weights.read_tensor("packed", (4, 2), torch.int32)])
def test_packed_tensors_are_rejected_as_plain_weights(tmp_path: Path,
                                                      read: Callable[[CheckpointReader], Tensor]) -> None:
    save_file({"packed": torch.ones(4, 2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with (open_weights(tmp_path) as weights,
          pytest.raises(ValueError, match=r"model.safetensors: packed is stored as I8, which is no number to comp")):
        read(weights)


# -- invalid folders


def test_a_missing_tensor_is_named(weights_folder: Path) -> None:
    with open_weights(weights_folder) as weights, pytest.raises(ValueError, match=r"lacks norm.weight"):
        weights.read_tensor("norm.weight", (4,))


def test_wrong_shape_is_reported_with_the_expected_one(weights_folder: Path) -> None:
    with (open_weights(weights_folder) as weights,
          pytest.raises(ValueError, match=r"model.safetensors: tall is \[6, 4\], config.json asks for \[4, 6\]")):
        weights.read_columns("tall", (4, 6), range(1))


def test_pickled_weights_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"as pytorch_model.bin, which can run code .*supported: safetensors"):
        open_weights(tmp_path)


def test_missing_file_of_the_index_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"tall": "model-1-of-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"lacks model-1-of-2.safetensors; is the download complete\?"):
        open_weights(tmp_path)


def write_safetensors(folder: Path, header: dict[str, Any], tensor_bytes: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + tensor_bytes)
    return folder


def test_truncated_file_is_rejected(tmp_path: Path) -> None:
    header = {"tall": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    with pytest.raises(ValueError, match="the file ends 3 bytes before tall does; is the download complete"):
        open_weights(write_safetensors(tmp_path, header, b"12345"))


def test_unsupported_dtype_is_rejected_when_its_tensor_is_read(tmp_path: Path) -> None:
    header = {"tall": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
    with open_weights(write_safetensors(tmp_path, header, b"12")) as weights:
        assert weights.list_unclaimed_names() == ["tall"]
        with pytest.raises(ValueError, match=r"model.safetensors: tall is stored as F4; supported: F64, F32, BF16, F"):
            weights.read_tensor("tall", (4,))


def test_tensor_in_two_files_is_rejected(tmp_path: Path) -> None:
    write_indexed_files(tmp_path, {"a": ["tall"], "b": ["tall", "flat"]}, {"flat": "b", "tall": "a"})
    with pytest.raises(ValueError, match=r"b.safetensors holds tall, and so does a.safetensors"):
        open_weights(tmp_path)


def test_tensor_missing_from_its_indexed_file_is_rejected(tmp_path: Path) -> None:
    write_indexed_files(tmp_path, {"a": ["tall"], "b": ["flat"]}, {"tall": "a", "flat": "b", "half": "a"})
    with pytest.raises(ValueError, match=r"a.safetensors lacks half, which model.safetensors.index.json promises"):
        open_weights(tmp_path)


def test_files_missing_from_the_index_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_indexed_files(tmp_path, {"a": ["tall", "half"], "b": ["flat"], "c": ["other"]}, {"tall": "a", "flat": "b"})
    with caplog.at_level("INFO"), open_weights(tmp_path) as weights:
        assert weights.list_unclaimed_names() == ["flat", "half", "tall"]
    assert caplog.messages == [f"{tmp_path} also holds c.safetensors, which is not read"]


def write_indexed_files(folder: Path, tensors_by_file: dict[str, list[str]], file_by_tensor: dict[str, str]) -> None:
    for file, names in tensors_by_file.items():
        save_file({name: TENSORS[name] for name in names}, folder / f"{file}.safetensors")
    index = {"weight_map": {name: f"{file}.safetensors" for name, file in file_by_tensor.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(("numbers", "complaint"), [
    (b"", "has no header"), (b"123", "has no header"), (b"\x05\0\0\0\0\0\0\0{{{{{", "is damaged")])
def test_file_without_a_header_is_rejected(tmp_path: Path, numbers: bytes, complaint: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(numbers)
    with pytest.raises(ValueError, match=complaint):
        open_weights(tmp_path)


# -- mutated headers


@pytest.fixture(scope="module")
def valid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small model as transformers writes it."""
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", vocab_size=480, hidden_size=32,
                                  intermediate_size=48, num_hidden_layers=1)
    return folder / "model.safetensors"


def get_read_error(folder: Path, expected: dict[str, Tensor]) -> str:
    """Return the first error of reading the folder, or "" if all tensors are as expected."""
    try:
        with open_weights(folder) as weights:
            for name, tensor in expected.items():
                assert torch.equal(weights.read_tensor(name, tuple(tensor.shape)), tensor)
            assert set(weights.list_unclaimed_names()) <= {"added"}
    except ValueError as error:
        return str(error)
    return ""


def names_a_tensor(names: set[str], message: str) -> bool:
    """Whether the error names one of these tensors; also true if there are no names."""
    return not names or any(name in message or ascii(name)[1:-1] in message for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MUTATION_KINDS)
def test_mutated_header_is_rejected_by_name_or_harmless(valid_file: Path, tmp_path: Path, kind: str) -> None:
    content, expected, path = valid_file.read_bytes(), load_file(valid_file), tmp_path / "model.safetensors"

    def read_mutated_files() -> None:
        for seed in range(NUM_MUTATIONS):
            mutation = mutate_file(content, kind, Random(f"{kind} {seed}"))
            path.write_bytes(mutation.content)
            if message := get_read_error(tmp_path, expected):
                assert str(tmp_path) in message, seed
                assert len(message) < 1500, seed
                assert len(message.splitlines()) == 1, seed
                assert names_a_tensor(mutation.names, message), (seed, message)
            else:
                assert kind in POSSIBLY_HARMLESS_KINDS, (seed, mutation)

    get_read_error(valid_file.parent, expected)
    assert needs_less_memory(8e6, read_mutated_files)
