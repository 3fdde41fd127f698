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
from support.small_checkpoints import tiny_checkpoint

from shard.checkpoint import safetensors_file
from shard.checkpoint.reader import Rows, Weights
from shard.checkpoint.safetensors_file import opened

CPU = torch.device("cpu")
SHAPE = (300, 400)
TENSORS = {"first": torch.ones(SHAPE), "second": torch.ones(SHAPE)}
READS: dict[str, Callable[[Weights, str], object]] = {
    "whole": lambda weights, name: weights.whole(name, SHAPE),
    "rows": lambda weights, name: weights.rows(name, SHAPE, range(200)),
    "stack": lambda weights, name: weights.stack([Rows(name, SHAPE, range(1, 3)), Rows(name, SHAPE, range(99, 400))]),
    "columns": lambda weights, name: weights.columns(name, SHAPE, range(3)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def cutting(path: Path, place: int, after: int) -> Callable[..., int]:
    """Return a `preadv` that truncates the file to `place` bytes after `after` reads."""
    preadv, num_left = os.preadv, after

    def read(*arguments: object) -> int:
        nonlocal num_left
        if not num_left:
            os.truncate(path, place)
        num_left -= 1
        return preadv(*arguments)  # type: ignore[arg-type]
    return read


def test_numbers_are_read_from_their_place(path: Path) -> None:
    memory = bytearray(8)
    with opened(path) as file:
        assert {name: entry.shape for name, entry in file.entries.items()} == {"first": SHAPE, "second": SHAPE}
        file.read("first", file.entries["first"].begin + 4, memoryview(memory))
    assert memory == TENSORS["first"][0, 1:3].numpy().tobytes()


def test_a_short_read_is_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda number, buffers, place: preadv(number, [buffers[0][:1000]], place))
    with Weights(path.parent, torch.float32, CPU) as weights:
        assert torch.equal(weights.whole("second", SHAPE), TENSORS["second"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("read", READS)
def test_a_file_that_is_cut_off_after_it_was_opened_is_refused(path: Path, read: str, dtype: torch.dtype) -> None:
    content, random = path.read_bytes(), Random(read)
    for _ in range(20):
        path.write_bytes(content)
        with Weights(path.parent, dtype, CPU) as weights:
            os.truncate(path, random.randrange(len(content)))
            for name in TENSORS:
                with pytest.raises(ValueError, match=rf"{path}.* {name}.* had {len(content)} bytes when it was opened"):
                    READS[read](weights, name)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("read", READS)
def test_a_file_that_is_cut_off_while_it_is_read_is_refused(
        path: Path, monkeypatch: pytest.MonkeyPatch, read: str, after: int) -> None:
    with Weights(path.parent, torch.bfloat16, CPU) as weights:
        monkeypatch.setattr(os, "preadv", cutting(path, 1000, after))
        with pytest.raises(ValueError, match=rf"{path}.* first.* when it was opened"):
            READS[read](weights, "first")


@pytest.mark.parametrize(("place", "after", "ends"), [(0, 0, 0), (4, 0, 4), (30, 1, 30), (4, 1, 8)])
def test_a_file_that_is_cut_off_before_its_header_was_read_is_refused(
        path: Path, monkeypatch: pytest.MonkeyPatch, place: int, after: int, ends: int) -> None:
    monkeypatch.setattr(os, "preadv", cutting(path, place, after))
    with pytest.raises(ValueError, match=rf"^{path} ends at byte {ends}, within its header"), opened(path):
        pass


def test_a_file_that_was_written_anew_is_refused(path: Path) -> None:
    with Weights(path.parent, torch.float32, CPU) as weights:
        weights.whole("first", SHAPE)
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(0, 0))  # clocks may be coarse
        with pytest.raises(ValueError, match=rf"{path} was changed while second was read: it had \d+ bytes .* and has"):
            weights.whole("second", SHAPE)


def test_a_file_that_another_took_the_place_of_is_read_to_its_end(path: Path) -> None:
    with Weights(path.parent, torch.float32, CPU) as weights:
        (path.parent / "other").write_bytes(b"other")
        (path.parent / "other").rename(path)
        assert torch.equal(weights.whole("first", SHAPE), TENSORS["first"])


def test_a_disk_that_fails_is_told_with_file_and_tensor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")
    with Weights(path.parent, torch.float32, CPU) as weights:
        monkeypatch.setattr(safetensors_file.os, "preadv", fail)
        with pytest.raises(ValueError, match=rf"^{path}: first cannot be read: Input/output error$"):
            weights.whole("first", SHAPE)


@pytest.mark.slow
def test_a_shard_that_finds_a_broken_file_ends_with_one_line(
        tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shutil.copytree(tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama"), tmp_path, dirs_exist_ok=True)
    broken = tmp_path / "model.safetensors"
    os.truncate(broken, broken.stat().st_size - 100)
    config = json.dumps({"socket": f"unix:{tmp_path}/shard", "model": str(tmp_path)})
    shard = subprocess.run([sys.executable, "-P", "-m", "shard.rpc.server", config], capture_output=True, text=True,
                           check=False)
    assert shard.returncode == 2  # a restart would not help
    assert re.fullmatch(rf"weft: {broken}: the file ends 100 bytes before \S+ does; is the download complete\?\n",
                        shard.stderr)
