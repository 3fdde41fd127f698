from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from shard.checkpoint.reader import Weights
from shard.layers import parallel_linear
from shard.layers.parallel_linear import Part, activated_linear, column_linear, gated_linear, row_linear
from shard.ops.activations import ActivatedLinear, PackedActivatedLinear
from shard.ops.gated_activations import GatedLinear, PackedGatedLinear
from shard.ops.linear import Linear
from tests.shard.side_by_side import Neighbour, side_by_side

INPUTS, OUTPUTS = 20, 12
CPU = torch.device("cpu")
SHAPES = {
    "gate.weight": (OUTPUTS, INPUTS), "gate.bias": (OUTPUTS,), "up.weight": (OUTPUTS, INPUTS), "up.bias": (OUTPUTS,),
    "down.weight": (INPUTS, OUTPUTS), "down.bias": (INPUTS,)}
TENSORS = {name: torch.randn(shape, generator=torch.Generator().manual_seed(0)) for name, shape in SHAPES.items()}
ROWS = torch.randn(5, INPUTS, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    turned = {f"turned_{name}": (tensor.mT if tensor.ndim > 1 else tensor).clone(memory_format=torch.contiguous_format)
              for name, tensor in TENSORS.items()}
    save_file(TENSORS | turned, folder / "model.safetensors")
    return folder


def part(name: str, rows: range = range(OUTPUTS), *, bias: bool = True) -> Part:
    return Part(name, (OUTPUTS, INPUTS), rows, bias)


def expected(name: str, rows: Tensor, *, bias: bool = True) -> Tensor:
    return functional.linear(rows, TENSORS[f"{name}.weight"], TENSORS[f"{name}.bias"] if bias else None)


@pytest.mark.parametrize("bias", [False, True])
def test_products_stand_side_by_side(folder: Path, bias: bool) -> None:
    with Weights(folder, torch.float32, CPU) as weights:
        both = column_linear(weights, [part("gate", range(3), bias=bias), part("up", range(4, 9), bias=bias)])
    gate, up = (expected(name, ROWS, bias=bias) for name in ("gate", "up"))
    torch.testing.assert_close(both(ROWS), torch.cat([gate[:, :3], up[:, 4:9]], dim=1))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_ranks_share_a_gated_product_and_sum_the_next(folder: Path, size: int, bias: bool) -> None:
    def run(group: Neighbour) -> Tensor:
        mine = range(OUTPUTS * group.rank // size, OUTPUTS * (group.rank + 1) // size)
        with Weights(folder, torch.float32, CPU) as weights:
            gated = gated_linear(weights, part("gate", mine, bias=bias), part("up", mine, bias=bias))
            down = row_linear(weights, group, "down", (INPUTS, OUTPUTS), mine, bias=bias)
            return down(gated(ROWS))

    gate, up = (expected(name, ROWS, bias=bias) for name in ("gate", "up"))
    first, *others = side_by_side(size, run)
    torch.testing.assert_close(first, expected("down", functional.silu(gate) * up, bias=bias), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_ranks_share_an_activated_product_however_it_is_stored(
        folder: Path, size: int, turned: bool, bias: bool) -> None:
    prefix = "turned_" if turned else ""

    def run(group: Neighbour) -> Tensor:
        mine = range(OUTPUTS * group.rank // size, OUTPUTS * (group.rank + 1) // size)
        with Weights(folder, torch.float32, CPU) as weights:
            up = activated_linear(weights, Part(f"{prefix}up", (OUTPUTS, INPUTS), mine, bias, turned), "tanh")
            down = row_linear(weights, group, f"{prefix}down", (INPUTS, OUTPUTS), mine, bias=bias, turned=turned)
            return down(up(ROWS))

    activated = functional.gelu(expected("up", ROWS, bias=bias), approximate="tanh")
    for found in side_by_side(size, run):
        torch.testing.assert_close(found, expected("down", activated, bias=bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_several_results_may_be_summed_at_once(folder: Path, size: int) -> None:
    def run(group: Neighbour) -> Tensor:
        mine = range(OUTPUTS * group.rank // size, OUTPUTS * (group.rank + 1) // size)
        with Weights(folder, torch.float32, CPU) as weights:
            down = row_linear(weights, group, "down", (INPUTS, OUTPUTS), mine, bias=True)
            part = ROWS[:, mine.start:mine.stop]
            return group.sum(down.partial(part) + down.partial(part))

    for found in side_by_side(size, run):
        torch.testing.assert_close(found, 2 * expected("down", ROWS[:, :OUTPUTS]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("packs", "kind"), [(True, PackedActivatedLinear), (False, ActivatedLinear)])
def test_the_kind_of_activated_product_follows_from_the_processor(
        folder: Path, monkeypatch: pytest.MonkeyPatch, packs: bool, kind: type[Linear]) -> None:
    monkeypatch.setattr(parallel_linear, "packs", lambda *_: packs)
    with Weights(folder, torch.float32, CPU) as weights:
        assert isinstance(activated_linear(weights, part("up"), "none"), kind)


@pytest.mark.parametrize("packs", [False, True])
def test_a_gated_product_has_the_activation_of_its_model(
        folder: Path, monkeypatch: pytest.MonkeyPatch, packs: bool) -> None:
    if not packs:
        monkeypatch.setattr(parallel_linear, "packs", lambda *_: False)
    with Weights(folder, torch.float32, CPU) as weights:
        gated = gated_linear(weights, part("gate"), part("up"), "gelu_pytorch_tanh")
    gate, up = (expected(name, ROWS) for name in ("gate", "up"))
    torch.testing.assert_close(gated(ROWS), functional.gelu(gate, approximate="tanh") * up)


@pytest.mark.parametrize(("packs", "dtype", "kind"), [
    (True, torch.float32, GatedLinear), (True, torch.float64, PackedGatedLinear), (False, torch.float32, GatedLinear)])
def test_the_kind_of_gated_product_follows_from_type_and_processor(
        folder: Path, monkeypatch: pytest.MonkeyPatch, packs: bool, dtype: torch.dtype, kind: type[Linear]) -> None:
    monkeypatch.setattr(parallel_linear, "packs", lambda *_: packs)
    monkeypatch.setattr("shard.ops.gated_activations.pack", lambda weight: weight)
    with Weights(folder, dtype, CPU) as weights:
        assert isinstance(gated_linear(weights, part("gate"), part("up")), kind)
