from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints.dequantized_checkpoints import check_logits_are_identical, make_checkpoint_pair
from support.checkpoints.quantized_checkpoints import Fp8Tool
from torch import Tensor

from shard.checkpoint.reader import CheckpointReader
from shard.json_config import JsonConfig
from shard.quantization.fp8 import FLOAT8_DTYPES, parse_block_shape, read_float8_slice, read_scales
from shard.quantization.quantization_format import MatrixSlice

CPU = torch.device("cpu")
ROW_SLICE = MatrixSlice("x.weight", (6, 4), range(1, 4), range(4))


def read_scale_matrix(folder: Path, stored: Tensor, matrix_slice: MatrixSlice = ROW_SLICE,
                      block: tuple[int, int] | None = None) -> Tensor:
    """Return the scale of each value in the slice."""
    save_file({"s": stored}, folder / "model.safetensors")
    with CheckpointReader(folder, torch.float32, CPU) as weights:
        read, groups = read_scales(weights, "s", matrix_slice, block)
    return read.index_select(1, groups) if read.shape[1] > 1 else read.expand(-1, len(groups))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_may_apply_to_all_weights(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert torch.equal(read_scale_matrix(tmp_path, torch.full(shape, 2.0)), torch.full((3, 4), 2.0))


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_each_output_may_have_a_scale(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert read_scale_matrix(tmp_path, torch.arange(6.0).view(shape))[:, 0].tolist() == [1, 2, 3]


def test_each_group_may_have_a_scale(tmp_path: Path) -> None:
    assert read_scale_matrix(tmp_path, torch.arange(12.0).view(6, 2))[0].tolist() == [2, 2, 3, 3]


def test_blocks_may_be_cut_by_a_slice_and_by_the_edge(tmp_path: Path) -> None:
    stored, columns = torch.tensor([[1.0, 2], [3, 4]]), MatrixSlice("x.weight", (6, 4), range(6), range(2, 4))
    expected = [[1, 2]] * 4 + [[3, 4]] * 2
    assert read_scale_matrix(tmp_path, stored, columns, (4, 3)).tolist() == expected


@pytest.mark.parametrize("shape", [(5, 1), (6, 3), (4, 6), (6, 0)])
def test_scales_of_wrong_shape_are_rejected_by_name(tmp_path: Path, shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"s is \[{shape[0]}, {shape[1]}\], which does not fit a weight of \[6, 4\]"):
        read_scale_matrix(tmp_path, torch.ones(shape))


def test_missing_scales_are_reported_by_name(tmp_path: Path) -> None:
    save_file({"other": torch.ones(1)}, tmp_path / "model.safetensors")
    with (CheckpointReader(tmp_path, torch.float32, CPU) as weights,
          pytest.raises(ValueError, match=r"lacks x\.weight_scale,")):
        read_scales(weights, "x.weight_scale", ROW_SLICE, None)


@pytest.mark.parametrize("dtype", FLOAT8_DTYPES)
def test_every_float8_value_matches_torch(tmp_path: Path, dtype: torch.dtype) -> None:
    all_values = torch.arange(256, dtype=torch.uint8).view(dtype).view(16, 16)
    save_file({"x.weight": all_values}, tmp_path / "model.safetensors")
    matrix_slice, read = MatrixSlice("x.weight", (16, 16), range(16), range(16)), torch.empty(16, 16)
    with CheckpointReader(tmp_path, torch.float32, CPU) as weights:
        read_float8_slice(weights, matrix_slice, dtype, torch.ones(16, 1), torch.zeros(16).long()).dequantize_into(read)
    assert torch.equal(read.nan_to_num(7.0), all_values.float().nan_to_num(7.0))


@pytest.mark.parametrize("size", [[128], [0, 1], "128x128", [1.5, 2]])
def test_block_size_must_be_two_numbers(size: object) -> None:
    assert parse_block_shape(JsonConfig({"size": [128, 64]}, "config.json"), "size") == (128, 64)
    assert parse_block_shape(JsonConfig({"none": None}, "config.json"), "none") is None
    with pytest.raises(ValueError, match="size must be two whole numbers of at least 1, got"):
        parse_block_shape(JsonConfig({"size": size}, "config.json"), "size")


@pytest.mark.slow
@pytest.mark.parametrize("tool", [Fp8Tool(), Fp8Tool(has_static_activations=True), Fp8Tool("channel"),
                                  Fp8Tool("block")], ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_match_dequantized_weights(
        tmp_path_factory: pytest.TempPathFactory, tool: Fp8Tool, num_ranks: int) -> None:
    check_logits_are_identical(make_checkpoint_pair(tmp_path_factory, tool), num_ranks)
