"""Kernels under Triton's interpreter, against torch's operations and, in whole models, against transformers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints.small_checkpoints import MODEL_FAMILIES, make_tiny_checkpoint
from support.model_runs.uninitialized_memory import fill_uninitialized_with_nan
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton")  # published for Linux only

from support.model_runs.decoder_reference import check_decoder_matches_transformers

from shard.attention.kv_cache import KVCache
from shard.layers import parallel_linear, rotary
from shard.layers.rotary import FusedRotaryEmbedding, QKNorm, RotaryConfig, RotaryEmbedding, RotaryTable
from shard.ops import fused_ops, norm
from shard.ops.norm import Fp32WeightRMSNorm, LayerNorm, RMSNorm

CPU = torch.device("cpu")
TOLERANCE_BY_DTYPE = {torch.float32: 2e-6, torch.float16: 2e-3}
NORM_CLASSES: list[type[RMSNorm] | None] = [None, RMSNorm, Fp32WeightRMSNorm]
SEEDS = st.integers(0, 2**32)
parametrize_dtype = pytest.mark.parametrize("dtype", TOLERANCE_BY_DTYPE, ids=str)


@pytest.fixture(autouse=True)
def fill_uninitialized_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_uninitialized_with_nan(monkeypatch)


@pytest.fixture(autouse=True)
def use_no_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layers that are compared with use torch's operations."""
    for module in (norm, rotary):
        monkeypatch.setattr(module, "import_fused_ops", lambda device: None)


@pytest.fixture
def use_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layers use the kernels, as on a GPU."""
    for module in (norm, rotary):
        monkeypatch.setattr(module, "import_fused_ops", lambda device: fused_ops)
    monkeypatch.setattr(parallel_linear, "import_kernels", lambda device: fused_ops)
    monkeypatch.setattr(parallel_linear, "should_pack", lambda dtype, device: False)


@parametrize_dtype
@pytest.mark.parametrize("make", [RMSNorm, Fp32WeightRMSNorm])
@given(rows=st.integers(1, 5), width=st.sampled_from([1, 37, 64, 896]), seed=SEEDS, adds=st.booleans())
@settings(max_examples=20)
def test_fused_norms_match_torch(make: type[RMSNorm], dtype: torch.dtype, *, rows: int, width: int, seed: int,
                                 adds: bool) -> None:
    torch.manual_seed(seed)
    x, delta = torch.randn(2, rows, width).to(dtype).unbind()
    weight = torch.randn(width).to(torch.float32 if make.rounds_after_weight else dtype)
    unfused_norm, x_copy = make(weight, 1e-5), x.clone()
    expected = unfused_norm(x_copy, delta) if adds else unfused_norm(x_copy)
    output = fused_ops.rms_norm(x, weight, 1e-5, round_after_weight=make.rounds_after_weight,
                                delta=delta if adds else None)
    torch.testing.assert_close(output, expected, rtol=TOLERANCE_BY_DTYPE[dtype], atol=4 * TOLERANCE_BY_DTYPE[dtype])
    assert torch.equal(x, x_copy)


@parametrize_dtype
@given(rows=st.integers(1, 4), width=st.sampled_from([1, 33, 1024, 1500]), seed=SEEDS)
@settings(max_examples=10)
def test_fused_gated_activations_match_torch(dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    gate, up = (3 * torch.randn(rows, 2 * width)).to(dtype).chunk(2, -1)
    for name, activate in (("silu", functional.silu),
                           ("gelu_pytorch_tanh", lambda x: functional.gelu(x, approximate="tanh"))):
        expected = (activate(gate.float()) * up.float()).to(dtype)
        torch.testing.assert_close(fused_ops.GATED_ACTIVATIONS[name](gate, up), expected,
                                   rtol=4 * TOLERANCE_BY_DTYPE[dtype], atol=TOLERANCE_BY_DTYPE[dtype])


def test_activations_of_extreme_values_are_finite() -> None:
    gate = torch.tensor([[-1e4, -200.0, 200.0, 1e4]])
    assert fused_ops.GATED_ACTIVATIONS["silu"](gate, torch.ones(1, 4)).tolist() == [[0.0, 0.0, 200.0, 1e4]]
    assert fused_ops.GATED_ACTIVATIONS["gelu_pytorch_tanh"](gate[:, 1:3], torch.ones(1, 2)).tolist() == [[0.0, 200.0]]


def rotate_and_cache(rotary_embedding: RotaryEmbedding, heads: Tensor, head_norm: QKNorm | None,
                     slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cache = KVCache(2, 2, heads.shape[2], block_size=16, num_blocks=4, dtype=heads.dtype, device=CPU)
    queries = rotary_embedding.rotate_and_cache(heads, head_norm, cache, 1, slots)
    assert not cache.keys[0].any()
    return queries, cache.keys[1], cache.values[1]


@parametrize_dtype
@pytest.mark.parametrize("make", NORM_CLASSES)
@pytest.mark.parametrize("neighbours", [False, True])
@given(share=st.sampled_from([1.0, 0.5, 0.25]), tokens=st.integers(1, 5),
       num_heads=st.sampled_from([3, 9, 28]),  # with keys and values they take one program, two, and four
       head_dim=st.sampled_from([16, 48, 64, 128, 256]), seed=SEEDS)
@settings(max_examples=8)
def test_fused_rotation_and_cache_write_match_separate_steps(  # noqa: PLR0917 - drawn arguments
        make: type[RMSNorm] | None, dtype: torch.dtype, neighbours: bool, share: float, tokens: int, num_heads: int,
        head_dim: int, seed: int) -> None:
    torch.manual_seed(seed)
    table = RotaryTable(RotaryConfig("default", 10000.0, rotated_fraction=share, is_interleaved=neighbours), head_dim,
                        512, CPU)
    positions, slots = torch.randint(512, (tokens,)), torch.randperm(64)[:tokens]
    heads = torch.randn(tokens, num_heads + 2 * 2, head_dim).to(dtype)
    weight = torch.randn(num_heads + 2, head_dim).to(torch.float32 if make is Fp32WeightRMSNorm else dtype)
    head_norm = None if make is None else make(weight, 1e-6)
    unfused_rotary = table.select_positions(positions)
    fused_rotary = FusedRotaryEmbedding(fused_ops, lambda: unfused_rotary, table.cos_sin_table, positions,
                                        interleaved=neighbours)
    for fused_output, unfused_output in zip(rotate_and_cache(fused_rotary, heads, head_norm, slots),
                                            rotate_and_cache(unfused_rotary, heads, head_norm, slots), strict=True):
        torch.testing.assert_close(fused_output, unfused_output, rtol=TOLERANCE_BY_DTYPE[dtype],
                                   atol=4 * TOLERANCE_BY_DTYPE[dtype])


def test_norm_unknown_to_the_kernel_is_computed_before_it() -> None:
    table, positions = RotaryTable(RotaryConfig("default", 10000.0), 16, 32, CPU), torch.tensor([3, 30])
    unfused_rotary, heads = table.select_positions(positions), torch.randn(2, 6, 16)
    fused_rotary = FusedRotaryEmbedding(fused_ops, lambda: unfused_rotary, table.cos_sin_table, positions,
                                        interleaved=False)
    head_norm = LayerNorm(torch.rand(4, 16), 1e-5)
    for fused_output, unfused_output in zip(*(rotate_and_cache(one, heads, head_norm, torch.tensor([7, 40]))
                                              for one in (fused_rotary, unfused_rotary)), strict=True):
        assert torch.equal(fused_output, unfused_output)


@pytest.mark.slow
@pytest.mark.parametrize("family", [
    pytest.param(name, marks=() if name in {"llama", "gemma2"} else pytest.mark.long)
    for name in MODEL_FAMILIES])
@pytest.mark.usefixtures("use_fused_kernels")
def test_models_with_fused_kernels_match_transformers(
        family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    check_decoder_matches_transformers(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family), torch.float32, 1,
                                       "triton", length=40)
