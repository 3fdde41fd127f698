from pathlib import Path

import pytest
import torch
from support.checkpoints.quantized_checkpoints import CompressedTensorsTool, GptqTool, write_quantized_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from shard.checkpoint.reader import CheckpointReader
from shard.models.registry import load_model, read_model_config
from shard.parallel.group import SingleRankGroup

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


def load_and_describe(folder: Path, quantize: str = "") -> str:
    config = read_model_config(folder)
    with CheckpointReader(folder, torch.float32, CPU, config.quantization, quantize) as weights:
        load_model(config, weights, SingleRankGroup())
        return weights.quantization_summary


def test_description_names_the_method_and_counts_weights(plain_checkpoint: Path, tmp_path: Path) -> None:
    assert load_and_describe(write_quantized_checkpoint(plain_checkpoint, GptqTool(), tmp_path)) == (
        "quantised checkpoint (GPTQ, 4 bits, groups of 32): 0 weights kept as int8, 14 made into float32 at load")


def test_weights_with_one_scale_per_output_are_kept_as_int8(plain_checkpoint: Path, tmp_path: Path) -> None:
    assert load_and_describe(write_quantized_checkpoint(
        plain_checkpoint, CompressedTensorsTool("int-quantized", 8, None),
        tmp_path)) == ("quantised checkpoint (compressed-tensors, int-quantized, 8 bits, activations not quantised): "
                       "12 weights kept as int8, 0 made into float32 at load")


def test_weights_quantized_at_load_are_counted(plain_checkpoint: Path) -> None:
    assert load_and_describe(plain_checkpoint, "int8") == "14 weights quantised to int8 and kept so"
    assert load_and_describe(plain_checkpoint) == ""


def test_quantizing_a_quantized_checkpoint_is_rejected(plain_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--quantize int8 is for weights that are not quantised, and these are: "
                       "GPTQ, 4 bits, groups of 32; leave it out"):
        load_and_describe(write_quantized_checkpoint(plain_checkpoint, GptqTool(), tmp_path), "int8")


def test_quantized_head_is_read(plain_checkpoint: Path, tmp_path: Path) -> None:
    assert "15 made into float32" in load_and_describe(write_quantized_checkpoint(plain_checkpoint, GptqTool(),
                                                                                  tmp_path, quantizes_head=True))
