"""Norms and rotary embedding by compiled kernels: against torch's operations, and a row's bits alone and in company."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shard.attention.kv_cache import KVCache
from shard.layers.rotary import FusedRotaryEmbedding, QKNorm, RotaryConfig, RotaryEmbedding, RotaryTable
from shard.native.library import load_library
from shard.ops import native_fused_ops, norm
from shard.ops.native_fused_ops import rms_norm
from shard.ops.norm import Fp32WeightRMSNorm, LayerNorm, RMSNorm
from shard.ops.rotary_arguments import LayerCacheSlots, RotaryArguments

pytestmark = pytest.mark.skipif(load_library() is None, reason="there are no compiled kernels here")
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
# bfloat16: a number on the border between two may be rounded to either
TOLERANCES = {torch.float32: {"rtol": 2e-6, "atol": 1e-5}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-3}}
SEEDS = st.integers(0, 2**32)
NORM_CLASSES: list[type[RMSNorm] | None] = [None, RMSNorm, Fp32WeightRMSNorm]


def make_torch_norm(make: type[RMSNorm], weight: Tensor) -> RMSNorm:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norm, "import_fused_ops", lambda device: None)
        return make(weight, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [RMSNorm, Fp32WeightRMSNorm])
@pytest.mark.parametrize("adds", [False, True])
@settings(max_examples=30)
@given(rows=st.integers(0, 5), width=st.sampled_from([1, 7, 16, 37, 256, 257, 896, 1500]), size=st.sampled_from(
    [0.0, 1e-3, 1.0, 1e3]), seed=SEEDS)
def test_norms_match_torch(make: type[RMSNorm], dtype: torch.dtype, *, adds: bool,
                           rows: int, width: int, size: float, seed: int) -> None:
    torch.manual_seed(seed)
    x, delta = (size * torch.randn(2, rows, width)).to(dtype).unbind()
    weight = torch.randn(width).to(torch.float32 if make.rounds_after_weight else dtype)
    x_copy, deltas = x.clone(), (delta,) if adds else ()
    expected = make_torch_norm(make, weight)(x_copy, *deltas)
    result = make(weight, 1e-5)(x, *deltas)
    torch.testing.assert_close(result, expected, **TOLERANCES[dtype])
    assert torch.equal(x, x_copy)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30)
@given(rows=st.integers(1, 40), first=st.integers(0, 60), width=st.sampled_from([1, 33, 300, 896]), seed=SEEDS)
def test_norm_does_not_depend_on_other_rows(dtype: torch.dtype, rows: int, first: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, delta = torch.randn(2, 100, width).to(dtype).unbind()
    weight = torch.randn(width)
    part, delta_part = x[first:first + rows].clone(), delta[first:first + rows]
    alone = rms_norm(part, weight, 1e-6, round_after_weight=False, delta=delta_part)
    together = rms_norm(x, weight, 1e-6, round_after_weight=False, delta=delta)
    assert torch.equal(alone, together[first:first + rows])
    assert torch.equal(part, x[first:first + rows])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_spoil_their_row_alone(value: float) -> None:
    x = torch.ones(3, 50)
    x[1, 7] = value
    result = rms_norm(x, torch.ones(50), 1e-6, round_after_weight=True)
    assert result.isfinite().all(-1).tolist() == [True, False, True]


def test_rows_that_the_norm_cannot_read_are_refused() -> None:
    for x, weight, delta in [(torch.ones(4, 8)[:, ::2], torch.ones(4), None),
                             (torch.ones(4, 8), torch.ones(8).bfloat16(), None),
                             (torch.ones(4, 8), torch.ones(8), torch.ones(3, 8)),
                             (torch.ones(4, 8), torch.ones(8), torch.ones(4, 8).bfloat16())]:
        with pytest.raises(ValueError, match="needs contiguous rows"):
            rms_norm(x, weight, 1e-6, round_after_weight=True, delta=delta)


def test_other_types_and_shapes_are_left_to_torch() -> None:
    for x in (torch.randn(2, 3, 8), torch.randn(2, 8).half()):
        result = RMSNorm(torch.ones(8, dtype=x.dtype), 1e-6)(x)
        torch.testing.assert_close(result.float(), torch.rms_norm(x.float(), [8], eps=1e-6), rtol=1e-3, atol=1e-3)


# -- Rotary embedding


def rotate_and_cache(rotary_embedding: RotaryEmbedding, heads: Tensor, head_norm: QKNorm | None,
                     slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cache = KVCache(2, 2, heads.shape[2], block_size=16, num_blocks=4, dtype=heads.dtype, device=CPU)
    queries = rotary_embedding.rotate_and_cache(heads, head_norm, cache, 1, slots)
    assert not cache.keys[0].any()
    return queries, cache.keys[1], cache.values[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", NORM_CLASSES)
@pytest.mark.parametrize("neighbours", [False, True])
@settings(max_examples=15)
@given(share=st.sampled_from([1.0, 0.5, 0.25]), tokens=st.integers(1, 5), num_heads=st.sampled_from([1, 3, 14]),
       head_dim=st.sampled_from([8, 16, 48, 64, 88, 128, 256]), seed=SEEDS)
def test_rotation_and_cache_write_match_separate_steps(  # noqa: PLR0917 - drawn arguments
        make: type[RMSNorm] | None, dtype: torch.dtype, neighbours: bool, share: float, tokens: int, num_heads: int,
        head_dim: int, seed: int) -> None:
    torch.manual_seed(seed)
    table = RotaryTable(RotaryConfig("default", 10000.0, rotated_fraction=share, is_interleaved=neighbours), head_dim,
                        512, CPU)
    positions, slots = torch.randint(512, (tokens,)), torch.randperm(64)[:tokens]
    heads = torch.randn(tokens, num_heads + 2 * 2, head_dim).to(dtype)
    weight = torch.randn(num_heads + 2, head_dim).to(torch.float32 if make is Fp32WeightRMSNorm else dtype)
    head_norm = None if make is None else make(weight, 1e-6)
    fused_rotary = table.select_positions(positions)
    assert isinstance(fused_rotary, FusedRotaryEmbedding)
    for fused_output, unfused_output in zip(rotate_and_cache(fused_rotary, heads, head_norm, slots),
                                            rotate_and_cache(fused_rotary.make_unfused(), heads, head_norm, slots),
                                            strict=True):
        torch.testing.assert_close(fused_output, unfused_output, **TOLERANCES[dtype])


@settings(max_examples=20)
@given(first=st.integers(0, 30), tokens=st.integers(1, 9), seed=SEEDS, dtype=st.sampled_from(DTYPES))
def test_rotation_does_not_depend_on_other_tokens(first: int, tokens: int, seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    table, positions, slots = (RotaryTable(RotaryConfig("default", 10000.0), 64, 512, CPU), torch.randint(512, (40,)),
                               torch.randperm(64)[:40])
    heads, head_norm = torch.randn(40, 9, 64).to(dtype), RMSNorm(torch.randn(7, 64), 1e-6)
    some = slice(first, first + tokens)
    queries, keys, values = rotate_and_cache(table.select_positions(positions), heads, head_norm, slots)
    some_queries, some_keys, some_values = rotate_and_cache(table.select_positions(positions[some]), heads[some],
                                                            head_norm, slots[some])
    assert torch.equal(queries[some], some_queries)
    for alone, together in ((some_keys, keys), (some_values, values)):
        assert torch.equal(alone[slots[some]], together[slots[some]])


def test_norms_and_heads_that_the_kernel_lacks_are_computed_by_torch() -> None:
    table, positions = RotaryTable(RotaryConfig("default", 10000.0), 512, 32, CPU), torch.tensor([3, 30])
    fused_rotary = table.select_positions(positions)
    assert isinstance(fused_rotary, FusedRotaryEmbedding)
    for heads, head_norm in ((torch.randn(2, 6, 512), None),
                             (torch.randn(2, 6, 512), LayerNorm(torch.rand(4, 512), 1e-5))):
        for fused_output, unfused_output in zip(*(rotate_and_cache(one, heads, head_norm, torch.tensor([7, 40]))
                                                  for one in (fused_rotary, fused_rotary.make_unfused())), strict=True):
            assert torch.equal(fused_output, unfused_output)


def test_heads_that_the_kernel_cannot_read_are_refused() -> None:
    angles = RotaryArguments(torch.ones(8, 16), torch.tensor([3]), interleaved=False)
    keys = torch.zeros(32, 16)
    with pytest.raises(ValueError, match="needs heads side by side in the type of the cache"):
        native_fused_ops.rotate_and_cache(torch.ones(1, 3, 32)[:, :, ::2], None, angles,
                                          LayerCacheSlots(keys, keys, torch.tensor([3])))
    with pytest.raises(ValueError, match="needs heads side by side in the type of the cache"):
        native_fused_ops.rotate_and_cache(torch.ones(1, 3, 16).bfloat16(), None, angles,
                                          LayerCacheSlots(keys, keys, torch.tensor([3])))
