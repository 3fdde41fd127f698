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
from support.header_mutations import KINDS, mutate
from support.process_memory import takes_less
from support.small_checkpoints import tiny_checkpoint
from torch import Tensor

from shard.checkpoint.reader import PACKED, Rows, Weights

CPU = torch.device("cpu")
TALL = torch.arange(24.0).view(6, 4)
NUM_MUTATIONS = 125  # of each kind, 2,000 together
HARMLESS = {"flip", "add"}  # kinds that may have no effect
TENSORS = {"tall": TALL, "other": -TALL[:3], "flat": torch.arange(5).bfloat16(), "half": torch.ones(2).half(),
           "mask": torch.ones(1, 4, 4, dtype=torch.bool)}


def opened(folder: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return Weights(folder, dtype, CPU)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_file(TENSORS, folder / "model.safetensors")
    return folder


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


def test_what_is_stored_the_other_way_round_is_turned(folder: Path) -> None:
    with opened(folder) as weights:
        rows = weights.stack([Rows("tall", (4, 6), mine, turned=True) for mine in (range(1, 3), range(1))])
        columns = weights.columns("tall", (4, 6), range(2, 5), turned=True)
    assert torch.equal(rows, TALL.T[[1, 2, 0]])
    assert torch.equal(columns, TALL.T[:, 2:5])
    assert rows.is_contiguous()
    assert columns.is_contiguous()


def test_weights_know_what_they_hold(folder: Path) -> None:
    with opened(folder) as weights:
        assert weights.holds("tall")
        assert not weights.holds("short")
        assert "tall" in weights.unclaimed()


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


def test_who_waits_hears_how_much_was_read_each_tensor_once(folder: Path) -> None:
    heard: list[tuple[int, int]] = []
    with Weights(folder, torch.float32, torch.device("cpu"), on_read=lambda *told: heard.append(told)) as weights:
        weights.whole("flat", (5,))
        weights.dtype_of("tall")
        weights.whole("tall", (6, 4))
    sizes = {name: tensor.nbytes for name, tensor in TENSORS.items()}
    assert [done for done, _ in heard] == [sizes["flat"], sizes["flat"] + sizes["tall"]]
    assert {total for _, total in heard} == {sum(sizes.values())}


def test_what_is_of_no_use_counts_as_claimed(folder: Path) -> None:
    with opened(folder) as weights:
        weights.ignore("tall")
        weights.ignore("not there")
        weights.whole("flat", (5,))
        assert weights.unclaimed() == ["half", "mask", "other"]
        weights.ignore_all("ot")
        assert weights.unclaimed() == ["half", "mask"]
        assert weights.holds("tall")
        assert not weights.holds("not there")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reading_takes_no_memory_beside_what_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"large": torch.ones(2000, 2000)}, tmp_path / "model.safetensors")
    with opened(tmp_path, dtype) as weights:
        assert takes_less(4e6 * dtype.itemsize + 2e6, lambda: weights.whole("large", (2000, 2000)))
        assert takes_less(1e6 * dtype.itemsize + 2e6, lambda: weights.columns("large", (2000, 2000), range(500)))
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(500, 100), (9, 20_000)])
def test_what_is_larger_than_the_stage_is_read_whole(
        tmp_path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
    large = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    save_file({"large": large}, tmp_path / "model.safetensors")
    with opened(tmp_path, dtype) as weights:
        assert torch.equal(weights.whole("large", shape), large.to(dtype))
        assert torch.equal(weights.rows("large", shape, range(3, 8)), large[3:8].to(dtype))
        for columns in (range(7, 60), range(1, shape[1]), range(0)):
            read = weights.columns("large", shape, columns)
            assert torch.equal(read, large[:, columns.start:columns.stop].to(dtype))


@pytest.mark.parametrize("name", PACKED)
def test_packed_numbers_come_as_they_are_stored(tmp_path: Path, name: str) -> None:
    dtype = PACKED[name]
    packed = torch.arange(24).view(6, 4).to(dtype)
    save_file({"packed": packed, "scale": torch.tensor(0.5)}, tmp_path / "model.safetensors")
    with opened(tmp_path) as weights:
        assert weights.dtype_of("packed") is dtype
        assert weights.whole("scale", ()) == 0.5
        for read, expected in (
                (weights.whole("packed", (6, 4), dtype), packed),
                (weights.rows("packed", (6, 4), range(2, 5), dtype), packed[2:5]),
                (weights.columns("packed", (6, 4), range(1, 3), dtype), packed[:, 1:3])):
            assert read.dtype is dtype
            assert torch.equal(read.float(), expected.float())


@pytest.mark.parametrize("read", [
    lambda weights: weights.whole("packed", (4, 2)), lambda weights: weights.rows("packed", (4, 2), range(1)),
    lambda weights: weights.columns("packed", (4, 2), range(1)),
    lambda weights: weights.whole("packed", (4, 2), torch.int32)])
def test_packed_numbers_are_not_computed_with(tmp_path: Path, read: Callable[[Weights], Tensor]) -> None:
    save_file({"packed": torch.ones(4, 2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with (opened(tmp_path) as weights,
          pytest.raises(ValueError, match=r"model.safetensors: packed is stored as I8, which is no number to comp")):
        read(weights)


# -- invalid folders


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
    with pytest.raises(ValueError, match="the file ends 3 bytes before tall does; is the download complete"):
        opened(written(tmp_path, header, b"12345"))


def test_a_type_that_is_not_read_is_refused_by_name_once_it_is_asked_for(tmp_path: Path) -> None:
    header = {"tall": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
    with opened(written(tmp_path, header, b"12")) as weights:
        assert weights.unclaimed() == ["tall"]
        with pytest.raises(ValueError, match=r"model.safetensors: tall is stored as F4; supported: F64, F32, BF16, F"):
            weights.whole("tall", (4,))


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    several(tmp_path, {"a": ["tall"], "b": ["tall", "flat"]}, {"flat": "b", "tall": "a"})
    with pytest.raises(ValueError, match=r"b.safetensors holds tall, and so does a.safetensors"):
        opened(tmp_path)


def test_a_promise_of_the_index_that_is_not_kept_is_refused(tmp_path: Path) -> None:
    several(tmp_path, {"a": ["tall"], "b": ["flat"]}, {"tall": "a", "flat": "b", "half": "a"})
    with pytest.raises(ValueError, match=r"a.safetensors lacks half, which model.safetensors.index.json promises"):
        opened(tmp_path)


def test_tensors_that_the_index_forgot_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    several(tmp_path, {"a": ["tall", "half"], "b": ["flat"], "c": ["other"]}, {"tall": "a", "flat": "b"})
    with caplog.at_level("INFO"), opened(tmp_path) as weights:
        assert weights.unclaimed() == ["flat", "half", "tall"]
    assert caplog.messages == [f"{tmp_path} also holds c.safetensors, which is not read"]


def several(folder: Path, files: dict[str, list[str]], promised: dict[str, str]) -> None:
    for file, names in files.items():
        save_file({name: TENSORS[name] for name in names}, folder / f"{file}.safetensors")
    index = {"weight_map": {name: f"{file}.safetensors" for name, file in promised.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(("numbers", "complaint"), [
    (b"", "has no header"), (b"123", "has no header"), (b"\x05\0\0\0\0\0\0\0{{{{{", "is damaged")])
def test_a_file_without_a_header_is_refused(tmp_path: Path, numbers: bytes, complaint: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(numbers)
    with pytest.raises(ValueError, match=complaint):
        opened(tmp_path)


# -- mutated headers


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small model as transformers writes it."""
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", vocab_size=480, hidden_size=32,
                             intermediate_size=48, num_hidden_layers=1)
    return folder / "model.safetensors"


def complaint(folder: Path, expected: dict[str, Tensor]) -> str:
    """Return the first error of reading the folder, or "" if all tensors are as expected."""
    try:
        with opened(folder) as weights:
            for name, tensor in expected.items():
                assert torch.equal(weights.whole(name, tuple(tensor.shape)), tensor)
            assert set(weights.unclaimed()) <= {"added"}
    except ValueError as error:
        return str(error)
    return ""


def is_named(names: set[str], said: str) -> bool:
    """Whether the error names one of these tensors; also true if there are no names."""
    return not names or any(name in said or ascii(name)[1:-1] in said for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_header_is_refused_by_name_or_harmless(sound: Path, tmp_path: Path, kind: str) -> None:
    content, expected, path = sound.read_bytes(), load_file(sound), tmp_path / "model.safetensors"

    def read_all() -> None:
        for seed in range(NUM_MUTATIONS):
            mutation = mutate(content, kind, Random(f"{kind} {seed}"))
            path.write_bytes(mutation.content)
            if said := complaint(tmp_path, expected):
                assert str(tmp_path) in said, seed
                assert len(said) < 1500, seed
                assert len(said.splitlines()) == 1, seed
                assert is_named(mutation.names, said), (seed, said)
            else:
                assert kind in HARMLESS, (seed, mutation)

    complaint(sound.parent, expected)
    assert takes_less(8e6, read_all)
