import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints.dequantized_checkpoints import (
    KERNEL_ERROR,
    MODEL_SIZES,
    compute_logits,
    disable_native_kernels,
)
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
from shard.models.registry import load_model, load_model_config
from shard.native.library import load_library
from shard.ops.native_int4_linear import can_keep_int4
from shard.parallel.group import SingleRankGroup
from shard.quantization.quantization_format import MatrixSlice
from shard.quantization.quantized_weight_reader import read_and_quantize_to_int4, read_and_quantize_to_int8
from shard.quantization.weight_quantization import RANGE_FRACTIONS

SMALL_WEIGHT = torch.tensor([[1.0, -2.54, 0.1], [0.0, 0.0, 0.0], [3e-3, 1e-3, -3e-3]])
needs_kernels = pytest.mark.skipif(load_library() is None, reason="there are no compiled kernels here")


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
    assert coded.can_stay_int8
    return weight


def test_scale_of_an_output_maps_its_largest_weight_to_127(tmp_path: Path) -> None:
    torch.testing.assert_close(read_int8_weight(tmp_path, range(3), range(3)), round_to_int8(SMALL_WEIGHT))


def test_slices_have_the_scale_of_the_whole_row(tmp_path: Path) -> None:
    torch.testing.assert_close(read_int8_weight(tmp_path, range(3), range(2, 3)), round_to_int8(SMALL_WEIGHT)[:, 2:])
    torch.testing.assert_close(read_int8_weight(tmp_path, range(1, 3), range(3)), round_to_int8(SMALL_WEIGHT)[1:])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", **MODEL_SIZES)


def compute_quantized_logits(checkpoint: Path, num_ranks: int, dtype: torch.dtype = torch.float32, *,
                             quantize: str = "int8") -> Tensor:
    outcomes: list[ForwardOutput] = run_on_ranks(
        num_ranks, lambda group: run_forward(load_decoder_model(checkpoint, dtype, group, quantize), group, dtype))
    assert outcomes[0].logits is not None
    return outcomes[0].logits


def compute_rounded_logits(checkpoint: Path, folder: Path, num_ranks: int,
                           round_weight: Callable[[str, Tensor], Tensor], *,
                           rounds_head: bool) -> Tensor:
    """Return the logits of a copy of the checkpoint, in `folder`, with rounded weights; the head's are int8."""
    tensors = load_file(checkpoint / "model.safetensors")
    for name, tensor in tensors.items():
        if "_proj" in name:
            tensors[name] = round_weight(name, tensor)
        elif name == "lm_head.weight" and rounds_head:
            tensors[name] = round_to_int8(tensor)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    return compute_logits(folder, num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_logits_match_rounded_weights(checkpoint: Path, tmp_path: Path, num_ranks: int) -> None:
    expected = compute_rounded_logits(checkpoint, tmp_path, num_ranks, lambda _, weight: round_to_int8(weight),
                                      rounds_head=False)
    largest = float(expected.abs().max())
    with disable_native_kernels():
        torch.testing.assert_close(compute_quantized_logits(checkpoint, num_ranks), expected, rtol=1e-5,
                                   atol=1e-5 * largest)


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_logits_of_kernels_match_rounded_weights(checkpoint: Path, tmp_path: Path, num_ranks: int) -> None:
    expected = compute_rounded_logits(checkpoint, tmp_path, num_ranks, lambda _, weight: round_to_int8(weight),
                                      rounds_head=True)
    torch.testing.assert_close(compute_quantized_logits(checkpoint, num_ranks), expected, rtol=0,
                               atol=KERNEL_ERROR * float(expected.abs().max()))


def is_split_by_inputs(name: str) -> bool:
    return "o_proj" in name or "down_proj" in name


def round_to_int4(weight: Tensor, num_ranks: int = 1) -> Tensor:
    """Return the weights after rounding to 16 levels for each 64 inputs, or for as many as divide a rank's part. The
    levels reach to the ends of the weights, or to 15 or 14 sixteenths of them, whichever rounds them best."""
    groups = weight.unflatten(1, (-1, min(64, weight.shape[1] // num_ranks)))
    least, largest = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    candidates = []
    for sixteenths in (16, 15, 14):
        scale = (largest - least) * sixteenths / 16 / 15
        least_code = (least * sixteenths / 16 / scale).round()
        candidates.append((groups / scale).round().clamp(least_code, least_code + 15) * scale)
    rounded = torch.stack(candidates)
    best = (rounded - groups).double().square().sum(-1, keepdim=True).argmin(0, keepdim=True)
    return rounded.take_along_dim(best, 0)[0].flatten(1)


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_match_weights_rounded_to_four_bits(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
                                                   num_ranks: int) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", intermediate_size=128)
    expected = compute_rounded_logits(
        checkpoint, tmp_path, num_ranks,
        lambda name, weight: round_to_int4(weight, num_ranks if is_split_by_inputs(name) else 1), rounds_head=True)
    quantized = compute_quantized_logits(checkpoint, num_ranks, quantize="int4")
    torch.testing.assert_close(quantized, expected, rtol=0, atol=KERNEL_ERROR * float(expected.abs().max()))


@pytest.mark.parametrize(("columns", "num_groups"), [
    (range(128), 2), (range(64, 128), 1), (range(32, 128), 3), (range(16, 64), 3), (range(8, 24), 2)])
def test_groups_of_four_bits_divide_the_columns_of_a_rank(tmp_path: Path, columns: range, num_groups: int) -> None:
    save_file({"x.weight": torch.randn(5, 128)}, tmp_path / "model.safetensors")
    with CheckpointReader(tmp_path, torch.float32, CPU, quantize_on_load="int4") as weights:
        coded = read_and_quantize_to_int4(weights, MatrixSlice("x.weight", (5, 128), range(1, 4), columns))
    assert coded.scales.shape == (3, num_groups)
    assert can_keep_int4([coded])


def test_slices_without_whole_groups_of_four_bits_are_refused(tmp_path: Path) -> None:
    save_file({"x.weight": torch.randn(5, 64)}, tmp_path / "model.safetensors")
    with (CheckpointReader(tmp_path, torch.float32, CPU, quantize_on_load="int4") as weights,
          pytest.raises(ValueError, match=r"int4 needs multiples of 8 inputs, and of x.weight a shard has inputs 3 to "
                                          r"64 of 64; choose another --num-shard, or --quantize int8")):
        read_and_quantize_to_int4(weights, MatrixSlice("x.weight", (5, 64), range(1, 4), range(3, 64)))


@pytest.mark.parametrize("make_weight", [torch.zeros, partial(torch.full, fill_value=3.0),
                                         lambda size: -torch.rand(size), torch.randn],
                         ids=["zeros", "equal", "negative", "random"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_of_four_bits_are_off_by_half_a_level(
        tmp_path: Path, make_weight: Callable[..., Tensor], seed: int) -> None:
    torch.manual_seed(seed)
    weight = make_weight(size=(2, 32))
    save_file({"x.weight": weight}, tmp_path / "model.safetensors")
    with CheckpointReader(tmp_path, torch.float32, CPU, quantize_on_load="int4") as weights:
        coded = read_and_quantize_to_int4(weights, MatrixSlice("x.weight", (2, 32), range(2), range(32)))
    rounded = torch.empty(2, 32)
    coded.dequantize_into(rounded)
    codes = coded.unpack_codes(0, 2)
    assert int((codes.amax(1) - codes.amin(1)).max()) <= 15
    # The levels of both ends may be rounded away from zero, so that one end is off by a whole level; and weights beyond
    # the chosen fraction of a group's range become its end.
    cut_off = weight.abs() * (1 - min(RANGE_FRACTIONS))
    assert ((rounded - weight).abs() <= coded.scales * 1.01 + cut_off).all()
    assert ((rounded - weight).abs().mean(1) <= 0.5 * coded.scales[:, 0]).all()


@pytest.mark.slow
def test_int8_weights_change_logits_little(checkpoint: Path) -> None:
    exact = run_transformers_model(checkpoint, torch.float32).logits
    assert exact is not None
    assert (compute_quantized_logits(checkpoint, 1) - exact).square().mean() < 1e-3 * exact.square().mean()


@pytest.mark.slow
def test_bfloat16_error_is_no_larger_with_int8_weights(checkpoint: Path) -> None:
    exact = compute_quantized_logits(checkpoint, 1)
    unquantized_error = compute_logits(checkpoint, 1, torch.bfloat16) - compute_logits(checkpoint, 1)
    assert (compute_quantized_logits(checkpoint, 1, torch.bfloat16)
            - exact).square().mean() < 1.25 * unquantized_error.square().mean()


def load_and_describe(folder: Path, quantize: str = "") -> str:
    config = load_model_config(folder)
    with CheckpointReader(folder, torch.float32, CPU, config.quantization, quantize) as weights:
        load_model(config, weights, SingleRankGroup())
        return weights.quantization_summary


def test_description_names_the_method_and_counts_weights(checkpoint: Path, tmp_path: Path) -> None:
    folder = write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path)
    with disable_native_kernels():
        assert load_and_describe(folder) == (
            "quantized checkpoint (GPTQ, 4 bits, groups of 32): 0 weights kept as int8, 14 made into float32 at load")


def test_quantization_that_only_the_config_names_is_described_as_such(checkpoint: Path, tmp_path: Path) -> None:
    quantized_folder = write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path / "quantized")
    folder = tmp_path / "plain"
    shutil.copytree(checkpoint, folder)
    shutil.copy(quantized_folder / "config.json", folder / "config.json")
    assert load_and_describe(folder) == (
        "config.json names a quantization (GPTQ, 4 bits, groups of 32) that no weight has")


@needs_kernels
def test_weights_of_four_bits_are_kept_so(checkpoint: Path, tmp_path: Path) -> None:
    assert load_and_describe(write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path)) == (
        "quantized checkpoint (GPTQ, 4 bits, groups of 32): 14 weights kept in four bits, 0 weights kept as int8, 0 "
        "made into float32 at load")


def test_weights_with_one_scale_per_output_are_kept_as_int8(checkpoint: Path, tmp_path: Path) -> None:
    assert load_and_describe(write_quantized_checkpoint(
        checkpoint, CompressedTensorsTool("int-quantized", 8, None),
        tmp_path)) == ("quantized checkpoint (compressed-tensors, int-quantized, 8 bits, activations not quantized): "
                       "12 weights kept as int8, 0 made into float32 at load")


def test_weights_quantized_at_load_are_counted(checkpoint: Path) -> None:
    with disable_native_kernels():
        assert load_and_describe(checkpoint, "int8") == "14 weights quantized to int8 and kept so"
    assert load_and_describe(checkpoint) == ""


@needs_kernels
def test_head_is_quantized_at_load_beside_other_weights(checkpoint: Path) -> None:
    for quantize in ("int8", "int4"):
        assert load_and_describe(checkpoint, quantize) == (
            f"14 weights quantized to {quantize}, the head to int8, and kept so")


def test_quantizing_a_quantized_checkpoint_is_rejected(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--quantize int8 is for weights that are not quantized, and these are: "
                       "GPTQ, 4 bits, groups of 32; leave it out"):
        load_and_describe(write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path), "int8")


def test_quantized_head_is_read(checkpoint: Path, tmp_path: Path) -> None:
    folder = write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path, quantizes_head=True)
    with disable_native_kernels():
        assert "15 made into float32" in load_and_describe(folder)


@needs_kernels
def test_quantized_head_is_read_beside_weights_of_four_bits(checkpoint: Path, tmp_path: Path) -> None:
    folder = write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path, quantizes_head=True)
    assert "14 weights kept in four bits, 0 weights kept as int8, 1 made into float32" in load_and_describe(folder)
