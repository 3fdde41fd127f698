from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.model_runs.ranks_in_threads import InProcessRankGroup, run_on_ranks
from torch import Tensor
from torch.nn import functional

from shard.checkpoint.reader import CheckpointReader
from shard.layers import parallel_linear
from shard.layers.parallel_linear import (
    LinearRows,
    load_column_parallel_linear,
    load_gated_linear,
    load_linear_with_gelu,
    load_row_parallel_linear,
)
from shard.native.library import load_library
from shard.ops.activated_linear import (
    GatedLinear,
    LinearWithGelu,
    LinearWithSeparateGelu,
    NativeGatedLinear,
    PackedGatedLinear,
    PackedLinearWithGelu,
)
from shard.ops.unquantized_linear import Linear

NUM_INPUTS, NUM_OUTPUTS = 20, 12
CPU = torch.device("cpu")
SHAPE_BY_TENSOR = {"gate.weight": (NUM_OUTPUTS, NUM_INPUTS), "gate.bias": (NUM_OUTPUTS,),
                   "up.weight": (NUM_OUTPUTS, NUM_INPUTS), "up.bias": (NUM_OUTPUTS,),
                   "down.weight": (NUM_INPUTS, NUM_OUTPUTS), "down.bias": (NUM_INPUTS,)}
TENSORS = {name: torch.randn(shape, generator=torch.Generator().manual_seed(0))
           for name, shape in SHAPE_BY_TENSOR.items()}
INPUT_ROWS = torch.randn(5, NUM_INPUTS, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def weights_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    transposed_tensors = {f"turned_{name}": (tensor.mT if tensor.ndim > 1 else tensor).clone(
        memory_format=torch.contiguous_format) for name, tensor in TENSORS.items()}
    save_file(TENSORS | transposed_tensors, folder / "model.safetensors")
    return folder


def make_linear_rows(name: str, rows: range = range(NUM_OUTPUTS), *, bias: bool = True) -> LinearRows:
    return LinearRows(name, (NUM_OUTPUTS, NUM_INPUTS), rows, bias)


def apply_reference_linear(name: str, rows: Tensor, *, bias: bool = True) -> Tensor:
    return functional.linear(rows, TENSORS[f"{name}.weight"], TENSORS[f"{name}.bias"] if bias else None)


@pytest.mark.parametrize("bias", [False, True])
def test_fused_column_linear_concatenates_outputs(weights_folder: Path, bias: bool) -> None:
    with CheckpointReader(weights_folder, torch.float32, CPU) as weights:
        fused_linear = load_column_parallel_linear(weights, [make_linear_rows("gate", range(3), bias=bias),
                                                             make_linear_rows("up", range(4, 9), bias=bias)])
    gate, up = (apply_reference_linear(name, INPUT_ROWS, bias=bias) for name in ("gate", "up"))
    torch.testing.assert_close(fused_linear(INPUT_ROWS), torch.cat([gate[:, :3], up[:, 4:9]], dim=1))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_ranks_split_a_gated_linear_and_sum_the_row_parallel_one(weights_folder: Path, size: int, bias: bool) -> None:
    def run_on_rank(group: InProcessRankGroup) -> Tensor:
        rank_range = range(NUM_OUTPUTS * group.rank // size, NUM_OUTPUTS * (group.rank + 1) // size)
        with CheckpointReader(weights_folder, torch.float32, CPU) as weights:
            gated = load_gated_linear(weights, make_linear_rows("gate", rank_range, bias=bias),
                                      make_linear_rows("up", rank_range, bias=bias))
            down = load_row_parallel_linear(weights, group, "down", (NUM_INPUTS, NUM_OUTPUTS), rank_range, bias=bias)
            return down(gated(INPUT_ROWS))

    gate, up = (apply_reference_linear(name, INPUT_ROWS, bias=bias) for name in ("gate", "up"))
    first, *others = run_on_ranks(size, run_on_rank)
    torch.testing.assert_close(first, apply_reference_linear("down", functional.silu(gate) * up, bias=bias), rtol=1e-4,
                               atol=1e-4)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_ranks_split_a_linear_with_gelu_however_it_is_stored(
        weights_folder: Path, size: int, transposed: bool, bias: bool) -> None:
    prefix = "turned_" if transposed else ""

    def run_on_rank(group: InProcessRankGroup) -> Tensor:
        rank_range = range(NUM_OUTPUTS * group.rank // size, NUM_OUTPUTS * (group.rank + 1) // size)
        with CheckpointReader(weights_folder, torch.float32, CPU) as weights:
            up = load_linear_with_gelu(weights, LinearRows(f"{prefix}up", (NUM_OUTPUTS, NUM_INPUTS), rank_range, bias,
                                                           transposed), "tanh")
            down = load_row_parallel_linear(weights, group, f"{prefix}down", (NUM_INPUTS, NUM_OUTPUTS), rank_range,
                                            bias=bias, transposed=transposed)
            return down(up(INPUT_ROWS))

    activated = functional.gelu(apply_reference_linear("up", INPUT_ROWS, bias=bias), approximate="tanh")
    for output in run_on_ranks(size, run_on_rank):
        torch.testing.assert_close(output, apply_reference_linear("down", activated, bias=bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_partial_results_may_be_summed_at_once(weights_folder: Path, size: int) -> None:
    def run_on_rank(group: InProcessRankGroup) -> Tensor:
        rank_range = range(NUM_OUTPUTS * group.rank // size, NUM_OUTPUTS * (group.rank + 1) // size)
        with CheckpointReader(weights_folder, torch.float32, CPU) as weights:
            down = load_row_parallel_linear(weights, group, "down", (NUM_INPUTS, NUM_OUTPUTS), rank_range, bias=True)
            input_slice = INPUT_ROWS[:, rank_range.start:rank_range.stop]
            return group.all_reduce_sum(down.linear(input_slice) + down.linear(input_slice))

    for output in run_on_ranks(size, run_on_rank):
        torch.testing.assert_close(output, 2 * apply_reference_linear("down", INPUT_ROWS[:, :NUM_OUTPUTS]), rtol=1e-4,
                                   atol=1e-4)


@pytest.mark.parametrize(("packs", "has_kernels", "kind"), [
    (True, False, PackedLinearWithGelu), (False, False, LinearWithGelu), (True, True, LinearWithSeparateGelu),
    (False, True, LinearWithSeparateGelu)])
def test_class_of_a_linear_with_gelu_depends_on_the_processor(
        weights_folder: Path, monkeypatch: pytest.MonkeyPatch, packs: bool, has_kernels: bool,
        kind: type[Linear]) -> None:
    monkeypatch.setattr(parallel_linear, "should_pack", lambda *_: packs)
    monkeypatch.setattr(parallel_linear, "has_native_matmul", lambda *_: has_kernels)
    with CheckpointReader(weights_folder, torch.float32, CPU) as weights:
        assert isinstance(load_linear_with_gelu(weights, make_linear_rows("up"), "none"), kind)


@pytest.mark.parametrize("packs", [False, True])
def test_gated_linear_uses_the_activation_of_its_model(
        weights_folder: Path, monkeypatch: pytest.MonkeyPatch, packs: bool) -> None:
    if not packs:
        monkeypatch.setattr(parallel_linear, "should_pack", lambda *_: False)
    with CheckpointReader(weights_folder, torch.float32, CPU) as weights:
        gated = load_gated_linear(weights, make_linear_rows("gate"), make_linear_rows("up"), "gelu_pytorch_tanh")
    gate, up = (apply_reference_linear(name, INPUT_ROWS) for name in ("gate", "up"))
    torch.testing.assert_close(gated(INPUT_ROWS), functional.gelu(gate, approximate="tanh") * up)


@pytest.mark.parametrize(("packs", "has_kernels", "dtype", "kind"), [
    (True, False, torch.float32, GatedLinear), (True, False, torch.float64, PackedGatedLinear),
    (False, False, torch.float32, GatedLinear), (True, True, torch.float32, NativeGatedLinear),
    (False, True, torch.float32, NativeGatedLinear)])
def test_gated_linear_class_depends_on_dtype_and_processor(  # noqa: PLR0917 - a table of cases
        weights_folder: Path, monkeypatch: pytest.MonkeyPatch, packs: bool, has_kernels: bool, dtype: torch.dtype,
        kind: type[Linear]) -> None:
    if has_kernels and load_library() is None:
        pytest.skip("there are no compiled kernels here")
    monkeypatch.setattr(parallel_linear, "has_native_matmul", lambda *_: has_kernels)
    monkeypatch.setattr(parallel_linear, "should_pack", lambda *_: packs)
    for module in ("activated_linear", "unquantized_linear"):
        monkeypatch.setattr(f"shard.ops.{module}.pack_weight", lambda weight: weight)
    with CheckpointReader(weights_folder, dtype, CPU) as weights:
        assert isinstance(load_gated_linear(weights, make_linear_rows("gate"), make_linear_rows("up")), kind)
