from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.quantized_checkpoints import Gptq

from shard.checkpoint.reader import Weights
from shard.quantization.gptq import Gptq as Form
from shard.quantization.gptq import check_groups
from tests.shard.forward import CPU
from tests.shard.same_model import agrees_closely, has_the_same_bits, pair

GROUPS = {
    "groups of 32": Gptq(),
    "groups of 16": Gptq(group_size=16, ordered=False),
    "reordered": Gptq(desc_act=True),
    "zero points": Gptq(sym=False),
    "zero points, as they are": Gptq(sym=False, checkpoint_format="gptq_v2"),
    "zero points, reordered": Gptq(sym=False, desc_act=True),
    "zero points, no groups": Gptq(bits=8, sym=False, group_size=-1),
    "8 bits": Gptq(bits=8),
    "8 bits, reordered, as they are": Gptq(bits=8, sym=False, desc_act=True, checkpoint_format="gptq_v2"),
}
KEPT = {
    "no groups": Gptq(group_size=-1),
    "no groups, zero points": Gptq(group_size=-1, sym=False),
    "no groups, 8 bits": Gptq(group_size=-1, bits=8),
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_are_those_of_the_numbers(
        tmp_path_factory: pytest.TempPathFactory, tool: Gptq, num_ranks: int) -> None:
    has_the_same_bits(pair(tmp_path_factory, tool), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("tool", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_of_kept_codes_are_close_to_those_of_the_numbers(
        tmp_path_factory: pytest.TempPathFactory, tool: Gptq, num_ranks: int) -> None:
    agrees_closely(pair(tmp_path_factory, tool), num_ranks)


def test_a_bias_of_zeros_is_left_unread_and_another_is_not(tmp_path: Path) -> None:
    save_file({"x.bias": torch.zeros(4), "y.bias": torch.ones(4), "x.qweight": torch.ones(1)},
              tmp_path / "model.safetensors")
    with Weights(tmp_path, torch.float32, CPU, Form(4, 32, 1)) as weights:
        assert [name for name in ("x.bias", "y.bias", "x.qweight") if Form(4, 32, 1).spare(weights, name)] == ["x.bias"]


@pytest.mark.parametrize("worst", [-1, 2])
def test_a_group_that_does_not_exist_is_named(worst: int) -> None:
    with pytest.raises(ValueError, match=rf"x.g_idx names groups from {min(worst, 0)} to {max(worst, 1)}; there are 2"):
        check_groups("x.g_idx", torch.tensor([0, 1, worst]), 2)


def test_tensors_of_another_shape_are_named(tmp_path: Path) -> None:
    save_file({"x.qweight": torch.ones(8, 16, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with (Weights(tmp_path, torch.float32, CPU, Form(4, 32, 1)) as weights,
          pytest.raises(ValueError, match=r"x\.qweight is \[8, 16\], config\.json asks for \[4, 16\]")):
        weights.whole("x.weight", (16, 32))
