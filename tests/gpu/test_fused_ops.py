"""Tests that the fused pointwise kernels match torch on a GPU. Without a GPU, Triton's interpreter runs them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton")  # available on Linux only

from shard.attention.kv_cache import KVCache
from shard.layers.rotary import FusedRotaryEmbedding, QKNorm, RotaryConfig, RotaryEmbedding, RotaryTable
from shard.ops import fused_ops
from shard.ops.norm import Fp32WeightRMSNorm, RMSNorm

pytestmark = pytest.mark.gpu
TOLERANCE_BY_DTYPE = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
NUM_ROWS_BY_DEVICE = {"cuda": (1, 7, 300), "cpu": (1, 7)}
NUM_BLOCKS = 32  # of 16 slots each
NORM_CLASSES: list[type[RMSNorm] | None] = [None, RMSNorm, Fp32WeightRMSNorm]
HEAD_DIMS = [64, 80, 96, 128, 256]
parametrize_dtype = pytest.mark.parametrize("dtype", TOLERANCE_BY_DTYPE, ids=str)


@pytest.fixture(autouse=True)
def skip_bfloat16_on_cpu(request: pytest.FixtureRequest, device: str) -> None:
    if device == "cpu" and request.node.callspec.params["dtype"] == torch.bfloat16:
        pytest.skip("the interpreter rounds bfloat16 towards zero")


def make_random_tensor(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(*shape).to(device, dtype)


@parametrize_dtype
@pytest.mark.parametrize("make", [RMSNorm, Fp32WeightRMSNorm])
@pytest.mark.parametrize("width", [64, 896, 2048, 4096, 5120])
def test_fused_norms_match_torch(make: type[RMSNorm], width: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(width)
    weight = make_random_tensor(width, dtype=torch.float32 if make.rounds_after_weight else dtype, device=device)
    unfused_norm = make(weight, 1e-5)
    for rows in NUM_ROWS_BY_DEVICE[device]:
        x, delta = make_random_tensor(2, rows, width, dtype=dtype, device=device).unbind()
        x_copy = x.clone()
        expected = unfused_norm(x_copy)
        output = fused_ops.rms_norm(x, weight, 1e-5, round_after_weight=make.rounds_after_weight)
        torch.testing.assert_close(output, expected, rtol=TOLERANCE_BY_DTYPE[dtype], atol=TOLERANCE_BY_DTYPE[dtype])
        expected = unfused_norm(x_copy, delta)
        output = fused_ops.rms_norm(x, weight, 1e-5, round_after_weight=make.rounds_after_weight, delta=delta)
        torch.testing.assert_close(output, expected, rtol=TOLERANCE_BY_DTYPE[dtype], atol=TOLERANCE_BY_DTYPE[dtype])
        assert torch.equal(x, x_copy)


@parametrize_dtype
@pytest.mark.parametrize("width", [33, 1024, 4864, 14336])
def test_fused_gated_activations_match_torch(width: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(width)
    for rows in NUM_ROWS_BY_DEVICE[device]:
        gate, up = make_random_tensor(rows, 2 * width, dtype=dtype, device=device).mul(3).chunk(2, -1)
        for name, expected in (("silu", functional.silu(gate.float())),
                               ("gelu_pytorch_tanh", functional.gelu(gate.float(), approximate="tanh"))):
            torch.testing.assert_close(fused_ops.GATED_ACTIVATIONS[name](gate, up), (expected * up.float()).to(dtype),
                                       rtol=TOLERANCE_BY_DTYPE[dtype], atol=TOLERANCE_BY_DTYPE[dtype])


# Compiling each case takes seconds, so not every pair is tested with every dtype.
@pytest.mark.parametrize(("dtype", "make", "head_dim", "neighbours"), [
    *((torch.bfloat16, make, head_dim, (row + column) % 2 == 1)
      for row, make in enumerate(NORM_CLASSES) for column, head_dim in enumerate(HEAD_DIMS)),
    *((dtype, NORM_CLASSES[column % 3], head_dim, column % 2 == row)
      for row, dtype in enumerate((torch.float16, torch.float32))
      for column, head_dim in enumerate(HEAD_DIMS))], ids=str)
def test_fused_rotation_and_cache_write_match_torch(
        head_dim: int, neighbours: bool, make: type[RMSNorm] | None, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(head_dim)
    torch_device = torch.device(device)
    for share, rows in zip((1.0, 0.5, 0.25), NUM_ROWS_BY_DEVICE[device], strict=False):
        table = RotaryTable(RotaryConfig("default", 10000.0, rotated_fraction=share, is_interleaved=neighbours),
                            head_dim, 512, torch_device)
        positions = torch.randint(512, (rows,), device=torch_device)
        slots = torch.randperm(NUM_BLOCKS * 16, device=torch_device)[:rows]
        heads = make_random_tensor(rows, 6 + 2 * 2, head_dim, dtype=dtype, device=device)
        weight = make_random_tensor(8, head_dim, dtype=torch.float32 if make is Fp32WeightRMSNorm else dtype,
                                    device=device)
        head_norm = None if make is None else make(weight, 1e-6)
        unfused_rotary = table.select_positions(positions)
        fused_rotary = FusedRotaryEmbedding(fused_ops, lambda plain=unfused_rotary: plain, table.cos_sin_table,
                                            positions, interleaved=neighbours)
        for fused_output, unfused_output in zip(rotate_and_cache(fused_rotary, heads, head_norm, slots),
                                                rotate_and_cache(unfused_rotary, heads, head_norm, slots), strict=True):
            torch.testing.assert_close(fused_output, unfused_output, rtol=TOLERANCE_BY_DTYPE[dtype],
                                       atol=TOLERANCE_BY_DTYPE[dtype])


def rotate_and_cache(rotary_embedding: RotaryEmbedding, heads: Tensor, head_norm: QKNorm | None,
                     slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries, and the keys and values in the cache afterwards."""
    cache = KVCache(1, 2, heads.shape[2], block_size=16, num_blocks=NUM_BLOCKS, dtype=heads.dtype, device=heads.device)
    return rotary_embedding.rotate_and_cache(heads, head_norm, cache, 0, slots), cache.keys[0], cache.values[0]
