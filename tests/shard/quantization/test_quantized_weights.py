from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints.dequantized_checkpoints import MODEL_SIZES, compute_logits, use_products_of_torch
from support.checkpoints.quantized_checkpoints import CompressedTensorsTool, GptqTool, write_quantized_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import (
    CPU,
    ForwardOutput,
    load_decoder_model,
    run_forward,
    run_transformers_model,
)
from support.model_runs.ranks_in_threads import run_on_ranks
from torch import Tensor

from shard.checkpoint.reader import CheckpointReader
from shard.models.registry import load_model, read_model_config
from shard.parallel.group import SingleRankGroup
from shard.quantization.format import MatrixSlice
from shard.quantization.quantized_weights import read_and_quantize_to_int8

SMALL_WEIGHT = torch.tensor([[1.0, -2.54, 0.1], [0.0, 0.0, 0.0], [3e-3, 1e-3, -3e-3]])


def round_to_int8(weight: Tensor) -> Tensor:
    """Return the weights after rounding to int8 with one scale per row."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return torch.where(scale > 0, (weight / scale).round() * scale, weight)


def read_int8_weight(folder: Path, rows: range, columns: range) -> Tensor:
    save_file({"x.weight": SMALL_WEIGHT}, folder / "model.safetensors")
    with CheckpointReader(folder, torch.float32, CPU, quantize_on_load="int8") as weights:
        coded = read_and_quantize_to_int8(weights, MatrixSlice("x.weight", (3, 3), rows, columns))
    weight = torch.empty(len(rows), len(columns))
    coded.dequantize_into(weight)
    assert coded.can_stay_quantized
    return weight


def test_scale_of_an_output_maps_its_largest_weight_to_127(tmp_path: Path) -> None:
    torch.testing.assert_close(read_int8_weight(tmp_path, range(3), range(3)), round_to_int8(SMALL_WEIGHT))


def test_slices_have_the_scale_of_the_whole_row(tmp_path: Path) -> None:
    torch.testing.assert_close(read_int8_weight(tmp_path, range(3), range(2, 3)), round_to_int8(SMALL_WEIGHT)[:, 2:])
    torch.testing.assert_close(read_int8_weight(tmp_path, range(1, 3), range(3)), round_to_int8(SMALL_WEIGHT)[1:])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", **MODEL_SIZES)


def compute_int8_logits(checkpoint: Path, num_ranks: int, dtype: torch.dtype = torch.float32) -> Tensor:
    outcomes: list[ForwardOutput] = run_on_ranks(
        num_ranks, lambda group: run_forward(load_decoder_model(checkpoint, dtype, group, "int8"), group, dtype))
    assert outcomes[0].logits is not None
    return outcomes[0].logits


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_logits_match_rounded_weights(checkpoint: Path, tmp_path: Path, num_ranks: int) -> None:
    tensors = {name: round_to_int8(tensor) if "_proj" in name else tensor
               for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    expected = compute_logits(tmp_path, num_ranks)
    largest = float(expected.abs().max())
    torch.testing.assert_close(compute_int8_logits(checkpoint, num_ranks), expected, rtol=0, atol=5e-4 * largest)
    with use_products_of_torch():
        torch.testing.assert_close(compute_int8_logits(checkpoint, num_ranks), expected, rtol=1e-5,
                                   atol=1e-5 * largest)


@pytest.mark.slow
def test_int8_weights_change_logits_little(checkpoint: Path) -> None:
    exact = run_transformers_model(checkpoint, torch.float32).logits
    assert exact is not None
    assert (compute_int8_logits(checkpoint, 1) - exact).square().mean() < 1e-3 * exact.square().mean()


@pytest.mark.slow
def test_bfloat16_error_is_no_larger_with_int8_weights(checkpoint: Path) -> None:
    exact = compute_int8_logits(checkpoint, 1)
    unquantized_error = compute_logits(checkpoint, 1, torch.bfloat16) - compute_logits(checkpoint, 1)
    assert (compute_int8_logits(checkpoint, 1, torch.bfloat16)
            - exact).square().mean() < 1.25 * unquantized_error.square().mean()


def load_and_describe(folder: Path, quantize: str = "") -> str:
    config = read_model_config(folder)
    with CheckpointReader(folder, torch.float32, CPU, config.quantization, quantize) as weights:
        load_model(config, weights, SingleRankGroup())
        return weights.quantization_summary


def test_description_names_the_method_and_counts_weights(checkpoint: Path, tmp_path: Path) -> None:
    assert load_and_describe(write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path)) == (
        "quantised checkpoint (GPTQ, 4 bits, groups of 32): 0 weights kept as int8, 14 made into float32 at load")


def test_weights_with_one_scale_per_output_are_kept_as_int8(checkpoint: Path, tmp_path: Path) -> None:
    assert load_and_describe(write_quantized_checkpoint(
        checkpoint, CompressedTensorsTool("int-quantized", 8, None),
        tmp_path)) == ("quantised checkpoint (compressed-tensors, int-quantized, 8 bits, activations not quantised): "
                       "12 weights kept as int8, 0 made into float32 at load")


def test_weights_quantized_at_load_are_counted(checkpoint: Path) -> None:
    assert load_and_describe(checkpoint, "int8") == "14 weights quantised to int8 and kept so"
    assert load_and_describe(checkpoint) == ""


def test_quantizing_a_quantized_checkpoint_is_rejected(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--quantize int8 is for weights that are not quantised, and these are: "
                       "GPTQ, 4 bits, groups of 32; leave it out"):
        load_and_describe(write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path), "int8")


def test_quantized_head_is_read(checkpoint: Path, tmp_path: Path) -> None:
    assert "15 made into float32" in load_and_describe(write_quantized_checkpoint(checkpoint, GptqTool(),
                                                                                  tmp_path, quantizes_head=True))
