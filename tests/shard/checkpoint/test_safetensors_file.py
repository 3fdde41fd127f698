import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from shard.checkpoint import safetensors_file
from shard.checkpoint.reader import CheckpointReader, RowSelection
from shard.checkpoint.safetensors_file import open_safetensors

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
