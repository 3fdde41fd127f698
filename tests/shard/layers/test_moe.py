import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.ranks_in_threads import InProcessRankGroup, run_on_ranks
from torch import Tensor

from shard.layers.moe import Expert, ExpertGate, RoutedExperts, sum_expert_outputs
from shard.ops.activated_linear import GatedLinear, PackedGatedLinear, batch_invariant_silu_and_mul
from shard.ops.unquantized_linear import Linear, can_pack, make_linear
from shard.parallel.group import SingleRankGroup

HIDDEN_SIZE, EXPERT_SIZE = 32, 24
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="not packed on this processor"))]


def make_gated_linear(gate: Tensor, up: Tensor) -> Linear:
    if gate.dtype == torch.float32:
        return GatedLinear(make_linear(torch.cat([gate, up])), batch_invariant_silu_and_mul)
    return PackedGatedLinear(gate, up, None, None)


def make_random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_experts(num_experts: int, num_experts_per_token: int, dtype: torch.dtype,
                 group: InProcessRankGroup | SingleRankGroup | None = None) -> RoutedExperts:
    group = group or SingleRankGroup()
    rank_slice = slice(EXPERT_SIZE * group.rank // group.size, EXPERT_SIZE * (group.rank + 1) // group.size)
    gate, *weights = (make_random_tensor(*shape, seed=seed).to(dtype) for seed, shape in enumerate(
        [(num_experts, HIDDEN_SIZE), (num_experts, EXPERT_SIZE, HIDDEN_SIZE), (num_experts, EXPERT_SIZE, HIDDEN_SIZE),
         (num_experts, HIDDEN_SIZE, EXPERT_SIZE)]))
    experts = [Expert(make_gated_linear(expert_gate[rank_slice].clone(), up[rank_slice].clone()),
                      make_linear(down[:, rank_slice].contiguous()))
               for expert_gate, up, down in zip(*weights, strict=True)]
    return RoutedExperts(ExpertGate(make_linear(gate), num_experts_per_token, normalize_weights=True), experts, group)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=st.integers(2, 100), place=st.integers(0, 100), sizes=st.sampled_from([(1, 1), (4, 2), (16, 5)]))
@settings(max_examples=20, deadline=None)
def test_result_does_not_depend_on_other_tokens(
        dtype: torch.dtype, num_rows: int, place: int, sizes: tuple[int, int]) -> None:
    experts, rows = make_experts(*sizes, dtype), make_random_tensor(num_rows, HIDDEN_SIZE, seed=num_rows).to(dtype)
    place %= num_rows
    row = rows[place]
    expected = experts(row[None])[0]
    assert torch.equal(experts(rows)[place], expected)
    assert torch.equal(experts(row.repeat(num_rows, 1))[place], expected)


@pytest.mark.parametrize("size", [2, 5])
def test_ranks_split_every_expert(size: int) -> None:
    rows = make_random_tensor(9, HIDDEN_SIZE)
    first, *others = run_on_ranks(size, lambda group: make_experts(4, 2, torch.float32, group)(rows))
    torch.testing.assert_close(first, make_experts(4, 2, torch.float32)(rows), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(other, first) for other in others)


def test_lowest_experts_are_chosen_among_equal_scores() -> None:
    experts, weights = ExpertGate(lambda x: torch.tensor([[1.0, 3.0, 1.0, 3.0, 3.0]]), 4,
                                  normalize_weights=True)(torch.zeros(1, 1))
    assert experts.tolist() == [[1, 3, 4, 0]]
    assert weights.sum() == pytest.approx(1)


def test_weights_without_normalization_are_softmax_over_all_experts() -> None:
    _, weights = ExpertGate(lambda x: x, 2, normalize_weights=False)(torch.zeros(1, 8))
    assert weights.tolist() == [[0.125, 0.125]]


def test_nan_row_does_not_affect_other_rows() -> None:
    rows, experts = make_random_tensor(5, HIDDEN_SIZE), make_experts(4, 2, torch.float32)
    expected = experts(rows)
    rows[2] = torch.nan
    outputs = experts(rows)
    assert outputs[2].isnan().all()
    assert torch.equal(outputs[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


def test_expert_outputs_are_summed_in_order_of_choice() -> None:
    rows = torch.tensor([[[1e8], [1.0], [-1e8]]])
    assert sum_expert_outputs(rows).item() == 0.0
    assert sum_expert_outputs(rows, torch.tensor([[0.0, 2.0, 0.0]])).item() == 2.0
