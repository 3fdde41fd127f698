"""Kernels under Triton's interpreter, against torch's operations and, in whole models, against transformers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_checkpoints import FAMILIES, tiny_checkpoint
from support.uninitialized_memory import poison_memory
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton")  # published for Linux only

from shard.attention.kv_cache import Cache
from shard.layers import parallel_linear, rotary
from shard.layers.attention_input import FusedTurn, HeadNorm, Turn
from shard.layers.rotary import RotaryTable
from shard.models.config import Rotary
from shard.ops import fused, norm
from shard.ops.norm import LayerNorm, RMSNorm, WideRMSNorm
from tests.shard.forward import agrees

CPU = torch.device("cpu")
CLOSE = {torch.float32: 2e-6, torch.float16: 2e-3}
NORMS: list[type[RMSNorm] | None] = [None, RMSNorm, WideRMSNorm]
SEEDS = st.integers(0, 2**32)
dtypes = pytest.mark.parametrize("dtype", CLOSE, ids=str)


@pytest.fixture(autouse=True)
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch)


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layers use the kernels, as on a GPU."""
    for module in (norm, parallel_linear, rotary):
        monkeypatch.setattr(module, "kernels", lambda device: fused)
    monkeypatch.setattr(parallel_linear, "packs", lambda dtype, device: False)


@dtypes
@pytest.mark.parametrize("make", [RMSNorm, WideRMSNorm])
@given(rows=st.integers(1, 5), width=st.sampled_from([1, 37, 64, 896]), seed=SEEDS, adds=st.booleans())
@settings(max_examples=20)
def test_norms_are_those_of_torch(make: type[RMSNorm], dtype: torch.dtype, *, rows: int, width: int, seed: int,
                                  adds: bool) -> None:
    torch.manual_seed(seed)
    x, delta = torch.randn(2, rows, width).to(dtype).unbind()
    weight = torch.randn(width).to(torch.float32 if make.is_wide else dtype)
    plain, same = make(weight, 1e-5), x.clone()
    expected = plain.after(same, delta) if adds else plain(same)
    found = fused.norm(x, weight, 1e-5, wide=make.is_wide, delta=delta if adds else None)
    torch.testing.assert_close(found, expected, rtol=CLOSE[dtype], atol=4 * CLOSE[dtype])
    assert torch.equal(x, same)


@dtypes
@given(rows=st.integers(1, 4), width=st.sampled_from([1, 33, 1024, 1500]), seed=SEEDS)
@settings(max_examples=10)
def test_activations_are_those_of_torch(dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    gate, up = (3 * torch.randn(rows, 2 * width)).to(dtype).chunk(2, -1)
    for name, activate in (("silu", functional.silu),
                           ("gelu_pytorch_tanh", lambda x: functional.gelu(x, approximate="tanh"))):
        expected = (activate(gate.float()) * up.float()).to(dtype)
        torch.testing.assert_close(fused.GATINGS[name](gate, up), expected, rtol=4 * CLOSE[dtype], atol=CLOSE[dtype])


def test_an_activation_of_what_is_far_from_zero_is_a_number() -> None:
    gate = torch.tensor([[-1e4, -200.0, 200.0, 1e4]])
    assert fused.silu_times(gate, torch.ones(1, 4)).tolist() == [[0.0, 0.0, 200.0, 1e4]]
    assert fused.gelu_tanh_times(gate[:, 1:3], torch.ones(1, 2)).tolist() == [[0.0, 200.0]]


def entered(turn: Turn, heads: Tensor, head_norm: HeadNorm | None, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cache = Cache(2, 2, heads.shape[2], block_size=16, num_blocks=4, dtype=heads.dtype, device=CPU)
    queries = turn.enter(heads, head_norm, cache, 1, slots)
    assert not cache.keys[0].any()
    return queries, cache.keys[1], cache.values[1]


@dtypes
@pytest.mark.parametrize("make", NORMS)
@pytest.mark.parametrize("neighbours", [False, True])
@given(share=st.sampled_from([1.0, 0.5, 0.25]), tokens=st.integers(1, 5),
       head_dim=st.sampled_from([16, 48, 64, 128, 256]), seed=SEEDS)
@settings(max_examples=8)
def test_all_enters_attention_as_it_does_step_by_step(  # noqa: PLR0917 - drawn arguments
        make: type[RMSNorm] | None, dtype: torch.dtype, neighbours: bool, share: float, tokens: int, head_dim: int,
        seed: int) -> None:
    torch.manual_seed(seed)
    table = RotaryTable(Rotary("default", 10000.0, share=share, neighbours=neighbours), head_dim, 512, CPU)
    positions, slots = torch.randint(512, (tokens,)), torch.randperm(64)[:tokens]
    heads = torch.randn(tokens, 3 + 2 * 2, head_dim).to(dtype)
    weight = torch.randn(5, head_dim).to(torch.float32 if make is WideRMSNorm else dtype)
    head_norm = None if make is None else make(weight, 1e-6)
    plain = table.at(positions)
    turn = FusedTurn(fused, lambda: plain, table.table, positions, neighbours=neighbours)
    for ours, theirs in zip(entered(turn, heads, head_norm, slots), entered(plain, heads, head_norm, slots),
                            strict=True):
        torch.testing.assert_close(ours, theirs, rtol=CLOSE[dtype], atol=4 * CLOSE[dtype])


def test_a_norm_that_the_kernel_does_not_know_is_computed_before() -> None:
    table, positions = RotaryTable(Rotary("default", 10000.0), 16, 32, CPU), torch.tensor([3, 30])
    plain, heads = table.at(positions), torch.randn(2, 6, 16)
    turn = FusedTurn(fused, lambda: plain, table.table, positions, neighbours=False)
    head_norm = LayerNorm(torch.rand(4, 16), 1e-5)
    for ours, theirs in zip(*(entered(one, heads, head_norm, torch.tensor([7, 40])) for one in (turn, plain)),
                            strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("family", [
    pytest.param(name, marks=() if name in {"llama", "gemma2"} else pytest.mark.long)
    for name in FAMILIES])
@pytest.mark.usefixtures("by_kernels")
def test_models_say_by_kernels_what_they_say_in_transformers(
        family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees(tiny_checkpoint(tmp_path_factory.getbasetemp(), family), torch.float32, 1, "triton", length=40)
