from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints.dequantized_checkpoints import (
    check_logits_are_close,
    check_logits_are_identical,
    make_checkpoint_pair,
)
from support.checkpoints.quantized_checkpoints import AwqTool, GptqTool
from support.model_runs.decoder_reference import CPU

from shard.checkpoint.reader import CheckpointReader
from shard.json_config import JsonConfig
from shard.quantization.gptq_and_awq import GptqFormat as Form
from shard.quantization.gptq_and_awq import check_column_groups, parse_group_size

DEQUANTIZED_TOOLS = {
    "groups of 32": GptqTool(),
    "groups of 16": GptqTool(group_size=16, writes_group_indexes=False),
    "reordered": GptqTool(desc_act=True),
    "zero points": GptqTool(sym=False),
    "zero points, as they are": GptqTool(sym=False, checkpoint_format="gptq_v2"),
    "zero points, reordered": GptqTool(sym=False, desc_act=True),
    "zero points, no groups": GptqTool(bits=8, sym=False, group_size=-1),
    "8 bits": GptqTool(bits=8),
    "8 bits, reordered, as they are": GptqTool(bits=8, sym=False, desc_act=True, checkpoint_format="gptq_v2"),
}
INT8_TOOLS = {
    "no groups": GptqTool(group_size=-1),
    "no groups, zero points": GptqTool(group_size=-1, sym=False),
    "no groups, 8 bits": GptqTool(group_size=-1, bits=8),
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", DEQUANTIZED_TOOLS.values(), ids=DEQUANTIZED_TOOLS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_match_dequantized_weights(
        tmp_path_factory: pytest.TempPathFactory, tool: GptqTool, num_ranks: int) -> None:
    check_logits_are_identical(make_checkpoint_pair(tmp_path_factory, tool), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("tool", INT8_TOOLS.values(), ids=INT8_TOOLS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_of_weights_kept_as_int8_are_close_to_dequantized_ones(
        tmp_path_factory: pytest.TempPathFactory, tool: GptqTool, num_ranks: int) -> None:
    check_logits_are_close(make_checkpoint_pair(tmp_path_factory, tool), num_ranks)


def test_only_biases_of_zeros_are_ignored(tmp_path: Path) -> None:
    save_file({"x.bias": torch.zeros(4), "y.bias": torch.ones(4), "x.qweight": torch.ones(1)},
              tmp_path / "model.safetensors")
    with CheckpointReader(tmp_path, torch.float32, CPU, Form(4, 32, 1)) as weights:
        assert [name for name in ("x.bias", "y.bias", "x.qweight")
                if Form(4, 32, 1).may_skip_tensor(weights, name)] == ["x.bias"]


@pytest.mark.parametrize("worst", [-1, 2])
def test_nonexistent_group_is_rejected_by_name(worst: int) -> None:
    with pytest.raises(ValueError, match=rf"x.g_idx names groups from {min(worst, 0)} to {max(worst, 1)}; there are 2"):
        check_column_groups("x.g_idx", torch.tensor([0, 1, worst]), 2)


def test_tensors_of_wrong_shape_are_rejected_by_name(tmp_path: Path) -> None:
    save_file({"x.qweight": torch.ones(8, 16, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with (CheckpointReader(tmp_path, torch.float32, CPU, Form(4, 32, 1)) as weights,
          pytest.raises(ValueError, match=r"x\.qweight is \[8, 16\], config\.json asks for \[4, 16\]")):
        weights.read_tensor("x.weight", (16, 32))


@pytest.mark.parametrize("size", [0, -2, None, True, "128"])
def test_invalid_group_size_is_rejected(size: object) -> None:
    assert parse_group_size(JsonConfig({}, "config.json"), -1) == -1
    with pytest.raises(ValueError, match="group_size must be -1 or a whole number of at least 1, got"):
        parse_group_size(JsonConfig({}, "config.json"), size)


# -- AWQ


@pytest.mark.slow
@pytest.mark.parametrize("group_size", [16, 32])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_awq_logits_match_dequantized_weights(
        tmp_path_factory: pytest.TempPathFactory, group_size: int, num_ranks: int) -> None:
    check_logits_are_identical(make_checkpoint_pair(tmp_path_factory, AwqTool(group_size)), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_awq_logits_of_weights_kept_as_int8_are_close_to_dequantized_ones(
        tmp_path_factory: pytest.TempPathFactory, num_ranks: int) -> None:
    check_logits_are_close(make_checkpoint_pair(tmp_path_factory, AwqTool(-1)), num_ranks)
