from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.small_checkpoints import tiny_checkpoint
from torch import Tensor

from shard.checkpoint.reader import Weights
from shard.quantization.format import Slice
from shard.quantization.int8 import read_int8
from tests.shard.forward import CPU, Outcome, oracle, read_model, run
from tests.shard.same_model import SIZES, logits
from tests.shard.side_by_side import side_by_side

WEIGHT = torch.tensor([[1.0, -2.54, 0.1], [0.0, 0.0, 0.0], [3e-3, 1e-3, -3e-3]])


def rounded(weight: Tensor) -> Tensor:
    """Return the weights after rounding to int8 with one scale per row."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return torch.where(scale > 0, (weight / scale).round() * scale, weight)


def read(folder: Path, rows: range, columns: range) -> Tensor:
    save_file({"x.weight": WEIGHT}, folder / "model.safetensors")
    with Weights(folder, torch.float32, CPU, quantize="int8") as weights:
        coded = read_int8(weights, Slice("x.weight", (3, 3), rows, columns))
    numbers = torch.empty(len(rows), len(columns))
    coded.fill(numbers)
    assert coded.keepable
    return numbers


def test_every_output_has_a_scale_by_which_the_largest_number_is_127(tmp_path: Path) -> None:
    torch.testing.assert_close(read(tmp_path, range(3), range(3)), rounded(WEIGHT))


def test_a_rank_has_the_scale_of_the_whole_row(tmp_path: Path) -> None:
    torch.testing.assert_close(read(tmp_path, range(3), range(2, 3)), rounded(WEIGHT)[:, 2:])
    torch.testing.assert_close(read(tmp_path, range(1, 3), range(3)), rounded(WEIGHT)[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", **SIZES)


def quantised(folder: Path, num_ranks: int, dtype: torch.dtype = torch.float32) -> Tensor:
    outcomes: list[Outcome] = side_by_side(
        num_ranks, lambda group: run(read_model(folder, dtype, group, "int8"), group, dtype))
    assert outcomes[0].logits is not None
    return outcomes[0].logits


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_logits_are_those_of_rounded_weights(folder: Path, tmp_path: Path, num_ranks: int) -> None:
    tensors = {name: rounded(tensor) if "_proj" in name else tensor
               for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    expected = logits(tmp_path, num_ranks)
    largest = float(expected.abs().max())
    torch.testing.assert_close(quantised(folder, num_ranks), expected, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.slow
def test_rounding_changes_little(folder: Path) -> None:
    exact = oracle(folder, torch.float32).logits
    assert exact is not None
    assert (quantised(folder, 1) - exact).square().mean() < 1e-3 * exact.square().mean()


@pytest.mark.slow
def test_bfloat16_rounds_no_worse_than_without(folder: Path) -> None:
    exact = quantised(folder, 1)
    theirs = logits(folder, 1, torch.bfloat16) - logits(folder, 1)
    assert (quantised(folder, 1, torch.bfloat16) - exact).square().mean() < 1.25 * theirs.square().mean()
