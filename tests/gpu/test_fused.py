"""Tests that the fused pointwise kernels match torch on a GPU. Without a GPU, Triton's interpreter runs them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton")  # available on Linux only

from shard.attention.kv_cache import Cache
from shard.layers.attention_input import FusedTurn, HeadNorm, Turn
from shard.layers.rotary import RotaryTable
from shard.models.config import Rotary
from shard.ops import fused
from shard.ops.norm import RMSNorm, WideRMSNorm

pytestmark = pytest.mark.gpu
CLOSE = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
ROWS = {"cuda": (1, 7, 300), "cpu": (1, 7)}
BLOCKS = 32  # of 16 slots each
NORMS: list[type[RMSNorm] | None] = [None, RMSNorm, WideRMSNorm]
HEAD_DIMS = [64, 80, 96, 128, 256]
dtypes = pytest.mark.parametrize("dtype", CLOSE, ids=str)


@pytest.fixture(autouse=True)
def rounded_as_on_a_card(request: pytest.FixtureRequest, device: str) -> None:
    if device == "cpu" and request.node.callspec.params["dtype"] == torch.bfloat16:
        pytest.skip("the interpreter rounds bfloat16 towards zero")


def drawn(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(*shape).to(device, dtype)


@dtypes
@pytest.mark.parametrize("make", [RMSNorm, WideRMSNorm])
@pytest.mark.parametrize("width", [64, 896, 2048, 4096, 5120])
def test_norms(make: type[RMSNorm], width: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(width)
    weight = drawn(width, dtype=torch.float32 if make.is_wide else dtype, device=device)
    plain = make(weight, 1e-5)
    for rows in ROWS[device]:
        x, delta = drawn(2, rows, width, dtype=dtype, device=device).unbind()
        same = x.clone()
        expected = plain(same)
        found = fused.norm(x, weight, 1e-5, wide=make.is_wide)
        torch.testing.assert_close(found, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        expected = plain.after(same, delta)
        found = fused.norm(x, weight, 1e-5, wide=make.is_wide, delta=delta)
        torch.testing.assert_close(found, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        assert torch.equal(x, same)


@dtypes
@pytest.mark.parametrize("width", [33, 1024, 4864, 14336])
def test_activations(width: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(width)
    for rows in ROWS[device]:
        gate, up = drawn(rows, 2 * width, dtype=dtype, device=device).mul(3).chunk(2, -1)
        for name, expected in (("silu", functional.silu(gate.float())),
                               ("gelu_pytorch_tanh", functional.gelu(gate.float(), approximate="tanh"))):
            torch.testing.assert_close(fused.GATINGS[name](gate, up), (expected * up.float()).to(dtype),
                                       rtol=CLOSE[dtype], atol=CLOSE[dtype])


# Compiling each case takes seconds, so not every pair is tested with every dtype.
@pytest.mark.parametrize(("dtype", "make", "head_dim", "neighbours"), [
    *((torch.bfloat16, make, head_dim, (row + column) % 2 == 1)
      for row, make in enumerate(NORMS) for column, head_dim in enumerate(HEAD_DIMS)),
    *((dtype, NORMS[column % 3], head_dim, column % 2 == row)
      for row, dtype in enumerate((torch.float16, torch.float32))
      for column, head_dim in enumerate(HEAD_DIMS))], ids=str)
def test_what_enters_attention(
        head_dim: int, neighbours: bool, make: type[RMSNorm] | None, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(head_dim)
    where = torch.device(device)
    for share, rows in zip((1.0, 0.5, 0.25), ROWS[device], strict=False):
        table = RotaryTable(Rotary("default", 10000.0, share=share, neighbours=neighbours), head_dim, 512, where)
        positions = torch.randint(512, (rows,), device=where)
        slots = torch.randperm(BLOCKS * 16, device=where)[:rows]
        heads = drawn(rows, 6 + 2 * 2, head_dim, dtype=dtype, device=device)
        weight = drawn(8, head_dim, dtype=torch.float32 if make is WideRMSNorm else dtype, device=device)
        head_norm = None if make is None else make(weight, 1e-6)
        plain = table.at(positions)
        turn = FusedTurn(fused, lambda plain=plain: plain, table.table, positions, neighbours=neighbours)
        for ours, theirs in zip(entered(turn, heads, head_norm, slots), entered(plain, heads, head_norm, slots),
                                strict=True):
            torch.testing.assert_close(ours, theirs, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def entered(turn: Turn, heads: Tensor, head_norm: HeadNorm | None, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries, and the keys and values in the cache afterwards."""
    cache = Cache(1, 2, heads.shape[2], block_size=16, num_blocks=BLOCKS, dtype=heads.dtype, device=heads.device)
    return turn.enter(heads, head_norm, cache, 0, slots), cache.keys[0], cache.values[0]
