from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.quantized_checkpoints import Compressed
from torch import Tensor

from shard.checkpoint.reader import Weights
from shard.quantization.compressed_tensors import Compressed as Form
from shard.quantization.compressed_tensors import packed_bits, read_order
from shard.quantization.format import Slice
from tests.shard.forward import CPU
from tests.shard.same_model import agrees_closely, has_the_same_bits, pair

NUMBERS = {
    "w4a16": Compressed(),
    "w4a16, zero points": Compressed(symmetric=False, ignored="model.layers.1.mlp.up_proj"),
    "w4a16, reordered": Compressed(ordered=True),
    "w8a16, groups": Compressed(bits=8, group_size=16),
    "w8a16, zero points": Compressed(bits=8, group_size=None, symmetric=False),
    "bytes, groups": Compressed("int-quantized", 8, 16),
    "bytes, zero points": Compressed("int-quantized", 8, None, symmetric=False),
    "floats": Compressed("float-quantized", 8),
    "floats, for each output": Compressed("float-quantized", 8, None),
    "floats in blocks": Compressed("float-quantized", 8, None, block=True),
}
KEPT = {
    "w4a16, for each output": Compressed(group_size=None),
    "w4a16, for each output, zero points": Compressed(group_size=None, symmetric=False),
    "w8a16": Compressed(bits=8, group_size=None),
    "bytes": Compressed("int-quantized", 8, None),
}


def stored(folder: Path, tensors: dict[str, Tensor]) -> Weights:
    save_file(tensors, folder / "model.safetensors")
    return Weights(folder, torch.float32, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("tool", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_are_those_of_the_numbers(
        tmp_path_factory: pytest.TempPathFactory, tool: Compressed, num_ranks: int) -> None:
    has_the_same_bits(pair(tmp_path_factory, tool), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("tool", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_of_kept_codes_are_close_to_those_of_the_numbers(
        tmp_path_factory: pytest.TempPathFactory, tool: Compressed, num_ranks: int) -> None:
    agrees_closely(pair(tmp_path_factory, tool), num_ranks)


@pytest.mark.parametrize(("columns", "bits"), [(4, 4), (8, 8)])
def test_how_wide_a_weight_is_stored_tells_its_bits(tmp_path: Path, columns: int, bits: int) -> None:
    with stored(tmp_path, {"x.weight_packed": torch.zeros(3, columns, dtype=torch.int32)}) as weights:
        assert packed_bits(weights, "x.weight_packed", (3, 32)) == bits


def test_a_packed_weight_of_another_width_is_named(tmp_path: Path) -> None:
    with (stored(tmp_path, {"x.weight_packed": torch.zeros(3, 5, dtype=torch.int32)}) as weights,
          pytest.raises(ValueError, match=r"x.weight_packed is \[3, 5\]; supported for a weight of \[3, 32\]: "
                                          r"\[3, 4\] \(4 bits\) or \[3, 8\] \(8 bits\)")):
        packed_bits(weights, "x.weight_packed", (3, 32))


def test_an_order_of_minus_one_is_none(tmp_path: Path) -> None:
    wanted, groups = Slice("x.weight", (1, 4), range(1), range(4)), torch.tensor([0, 0, 1, 1])
    with stored(tmp_path, {"x.weight_g_idx": torch.full((4,), -1, dtype=torch.int32)}) as weights:
        assert read_order(weights, wanted, torch.ones(1, 2), groups) is groups


def test_scales_of_activations_and_of_the_cache_are_left_unread(tmp_path: Path) -> None:
    tensors = {f"x.{name}": torch.ones(1) for name in ("input_scale", "k_scale", "v_scale", "other")}
    form = Form(("float-quantized",), (8,), None)
    save_file(tensors, tmp_path / "model.safetensors")
    with Weights(tmp_path, torch.float32, CPU, form) as weights:
        assert weights.unclaimed() == ["x.other"]
