import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shard.layers.moe import Expert, Experts, Router, added
from shard.ops.gated_activations import GatedLinear, PackedGatedLinear, exact_silu_times
from shard.ops.linear import Linear, can_pack, make_linear
from shard.parallel.group import Alone
from tests.shard.side_by_side import Neighbour, side_by_side

HIDDEN, WIDE = 32, 24
TYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="not packed on this processor"))]


def gated(gate: Tensor, up: Tensor) -> Linear:
    if gate.dtype == torch.float32:
        return GatedLinear(make_linear(torch.cat([gate, up])), exact_silu_times)
    return PackedGatedLinear(gate, up, None, None)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mixture(num_experts: int, num_chosen: int, dtype: torch.dtype, group: Neighbour | Alone | None = None) -> Experts:
    group = group or Alone()
    mine = slice(WIDE * group.rank // group.size, WIDE * (group.rank + 1) // group.size)
    gate, *weights = (random(*shape, seed=seed).to(dtype) for seed, shape in enumerate(
        [(num_experts, HIDDEN), (num_experts, WIDE, HIDDEN), (num_experts, WIDE, HIDDEN), (num_experts, HIDDEN, WIDE)]))
    experts = [Expert(gated(one[mine].clone(), up[mine].clone()), make_linear(down[:, mine].contiguous()))
               for one, up, down in zip(*weights, strict=True)]
    return Experts(Router(make_linear(gate), num_chosen, normalised=True), experts, group)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@given(num_rows=st.integers(2, 100), place=st.integers(0, 100), sizes=st.sampled_from([(1, 1), (4, 2), (16, 5)]))
@settings(max_examples=20, deadline=None)
def test_a_token_has_the_same_bits_whoever_chose_the_same_experts(
        dtype: torch.dtype, num_rows: int, place: int, sizes: tuple[int, int]) -> None:
    experts, rows = mixture(*sizes, dtype), random(num_rows, HIDDEN, seed=num_rows).to(dtype)
    place %= num_rows
    row = rows[place]
    expected = experts(row[None])[0]
    assert torch.equal(experts(rows)[place], expected)
    assert torch.equal(experts(row.repeat(num_rows, 1))[place], expected)


@pytest.mark.parametrize("size", [2, 5])
def test_ranks_share_every_expert(size: int) -> None:
    rows = random(9, HIDDEN)
    first, *others = side_by_side(size, lambda group: mixture(4, 2, torch.float32, group)(rows))
    torch.testing.assert_close(first, mixture(4, 2, torch.float32)(rows), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(other, first) for other in others)


def test_of_experts_with_equal_scores_the_lowest_are_chosen() -> None:
    experts, shares = Router(lambda x: torch.tensor([[1.0, 3.0, 1.0, 3.0, 3.0]]), 4, normalised=True)(torch.zeros(1, 1))
    assert experts.tolist() == [[1, 3, 4, 0]]
    assert shares.sum() == pytest.approx(1)


def test_shares_are_those_of_all_experts_unless_they_are_normalised() -> None:
    _, shares = Router(lambda x: x, 2, normalised=False)(torch.zeros(1, 8))
    assert shares.tolist() == [[0.125, 0.125]]


def test_a_row_that_is_no_number_spoils_no_other() -> None:
    rows, experts = random(5, HIDDEN), mixture(4, 2, torch.float32)
    expected = experts(rows)
    rows[2] = torch.nan
    said = experts(rows)
    assert said[2].isnan().all()
    assert torch.equal(said[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


def test_what_experts_say_is_added_in_the_order_of_the_choice() -> None:
    rows = torch.tensor([[[1e8], [1.0], [-1e8]]])
    assert added(rows).item() == 0.0
    assert added(rows, torch.tensor([[0.0, 2.0, 0.0]])).item() == 2.0
