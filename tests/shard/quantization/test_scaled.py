from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from shard.checkpoint.reader import Weights
from shard.quantization.format import Slice
from shard.quantization.scaled import FLOAT8, floats, read_scales

CPU = torch.device("cpu")
ROWS = Slice("x.weight", (6, 4), range(1, 4), range(4))


def scales(folder: Path, stored: Tensor, wanted: Slice = ROWS, block: tuple[int, int] | None = None) -> Tensor:
    """Return the scale of each value in the slice."""
    save_file({"s": stored}, folder / "model.safetensors")
    with Weights(folder, torch.float32, CPU) as weights:
        read, groups = read_scales(weights, "s", wanted, block)
    return read.index_select(1, groups) if read.shape[1] > 1 else read.expand(-1, len(groups))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_serves_all(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert torch.equal(scales(tmp_path, torch.full(shape, 2.0)), torch.full((3, 4), 2.0))


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_every_output_has_its_scale(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert scales(tmp_path, torch.arange(6.0).view(shape))[:, 0].tolist() == [1, 2, 3]


def test_groups_have_theirs(tmp_path: Path) -> None:
    assert scales(tmp_path, torch.arange(12.0).view(6, 2))[0].tolist() == [2, 2, 3, 3]


def test_blocks_may_be_cut_by_a_slice_and_by_the_edge(tmp_path: Path) -> None:
    stored, columns = torch.tensor([[1.0, 2], [3, 4]]), Slice("x.weight", (6, 4), range(6), range(2, 4))
    expected = [[1, 2]] * 4 + [[3, 4]] * 2
    assert scales(tmp_path, stored, columns, (4, 3)).tolist() == expected


@pytest.mark.parametrize("shape", [(5, 1), (6, 3), (4, 6), (6, 0)])
def test_scales_that_do_not_fit_are_named(tmp_path: Path, shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"s is \[{shape[0]}, {shape[1]}\], which does not fit a weight of \[6, 4\]"):
        scales(tmp_path, torch.ones(shape))


def test_missing_scales_are_named(tmp_path: Path) -> None:
    save_file({"other": torch.ones(1)}, tmp_path / "model.safetensors")
    with Weights(tmp_path, torch.float32, CPU) as weights, pytest.raises(ValueError, match=r"lacks x\.weight_scale,"):
        read_scales(weights, "x.weight_scale", ROWS, None)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_eight_bit_float_is_what_torch_says(tmp_path: Path, dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype).view(16, 16)
    save_file({"x.weight": every}, tmp_path / "model.safetensors")
    wanted, read = Slice("x.weight", (16, 16), range(16), range(16)), torch.empty(16, 16)
    with Weights(tmp_path, torch.float32, CPU) as weights:
        floats(weights, wanted, dtype, torch.ones(16, 1), torch.zeros(16).long()).fill(read)
    assert torch.equal(read.nan_to_num(7.0), every.float().nan_to_num(7.0))
