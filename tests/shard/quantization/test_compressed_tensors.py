from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints.dequantized_checkpoints import (
    check_logits_are_close,
    check_logits_are_identical,
    make_checkpoint_pair,
)
from support.checkpoints.quantized_checkpoints import CompressedTensorsTool
from support.model_runs.decoder_reference import CPU
from torch import Tensor

from shard.checkpoint.reader import CheckpointReader
from shard.quantization.compressed_tensors import CompressedTensorsFormat as Form
from shard.quantization.compressed_tensors import find_bits_per_code, read_group_of_each_column
from shard.quantization.quantization_format import MatrixSlice

DEQUANTIZED_TOOLS = {
    "w4a16": CompressedTensorsTool(),
    "w4a16, zero points": CompressedTensorsTool(symmetric=False, ignored_pattern="model.layers.1.mlp.up_proj"),
    "w4a16, reordered": CompressedTensorsTool(has_permuted_groups=True),
    "w8a16, groups": CompressedTensorsTool(bits=8, group_size=16),
    "w8a16, zero points": CompressedTensorsTool(bits=8, group_size=None, symmetric=False),
    "bytes, groups": CompressedTensorsTool("int-quantized", 8, 16),
    "bytes, zero points": CompressedTensorsTool("int-quantized", 8, None, symmetric=False),
    "floats": CompressedTensorsTool("float-quantized", 8),
    "floats, for each output": CompressedTensorsTool("float-quantized", 8, None),
    "floats in blocks": CompressedTensorsTool("float-quantized", 8, None, has_block_scales=True),
}
INT8_TOOLS = {
    "w4a16, for each output": CompressedTensorsTool(group_size=None),
    "w4a16, for each output, zero points": CompressedTensorsTool(group_size=None, symmetric=False),
    "w8a16": CompressedTensorsTool(bits=8, group_size=None),
    "bytes": CompressedTensorsTool("int-quantized", 8, None),
}


def write_and_open_weights(folder: Path, tensors: dict[str, Tensor]) -> CheckpointReader:
    save_file(tensors, folder / "model.safetensors")
    return CheckpointReader(folder, torch.float32, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("tool", DEQUANTIZED_TOOLS.values(), ids=DEQUANTIZED_TOOLS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_match_dequantized_weights(
        tmp_path_factory: pytest.TempPathFactory, tool: CompressedTensorsTool, num_ranks: int) -> None:
    check_logits_are_identical(make_checkpoint_pair(tmp_path_factory, tool), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("tool", INT8_TOOLS.values(), ids=INT8_TOOLS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_of_weights_kept_as_int8_are_close_to_dequantized_ones(
        tmp_path_factory: pytest.TempPathFactory, tool: CompressedTensorsTool, num_ranks: int) -> None:
    check_logits_are_close(make_checkpoint_pair(tmp_path_factory, tool), num_ranks)


@pytest.mark.parametrize(("columns", "bits"), [(4, 4), (8, 8)])
def test_bits_follow_from_the_stored_width_of_a_weight(tmp_path: Path, columns: int, bits: int) -> None:
    with write_and_open_weights(tmp_path, {"x.weight_packed": torch.zeros(3, columns, dtype=torch.int32)}) as weights:
        assert find_bits_per_code(weights, "x.weight_packed", (3, 32)) == bits


def test_packed_weight_of_another_width_is_rejected_by_name(tmp_path: Path) -> None:
    with (write_and_open_weights(tmp_path, {"x.weight_packed": torch.zeros(3, 5, dtype=torch.int32)}) as weights,
          pytest.raises(ValueError, match=r"x.weight_packed is \[3, 5\]; supported for a weight of \[3, 32\]: "
                        r"\[3, 4\] \(4 bits\) or \[3, 8\] \(8 bits\)")):
        find_bits_per_code(weights, "x.weight_packed", (3, 32))


def test_group_order_of_minus_ones_is_ignored(tmp_path: Path) -> None:
    matrix_slice, groups = MatrixSlice("x.weight", (1, 4), range(1), range(4)), torch.tensor([0, 0, 1, 1])
    with write_and_open_weights(tmp_path, {"x.weight_g_idx": torch.full((4,), -1, dtype=torch.int32)}) as weights:
        assert read_group_of_each_column(weights, matrix_slice, torch.ones(1, 2), groups) is groups


def test_activation_and_cache_scales_are_ignored(tmp_path: Path) -> None:
    tensors = {f"x.{name}": torch.ones(1) for name in ("input_scale", "k_scale", "v_scale", "other")}
    form = Form(("float-quantized",), (8,), None)
    save_file(tensors, tmp_path / "model.safetensors")
    with CheckpointReader(tmp_path, torch.float32, CPU, form) as weights:
        assert weights.list_unclaimed_names() == ["x.other"]
