from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from shard.native.library import load_library
from shard.ops import norm as norm_module
from shard.ops.norm import Fp32WeightRMSNorm, LayerNorm, ResidualStream, RMSNorm

DTYPES = [torch.float32, torch.bfloat16]
MakeNorm = Callable[[Tensor, float], RMSNorm | LayerNorm]


@pytest.fixture(autouse=True, params=["kernels", "torch"])
def choose_implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(norm_module, "import_fused_ops", lambda device: None)
    elif load_library() is None:
        pytest.skip("there are no compiled kernels here")


def make_layer_norm_with_bias(weight: Tensor, epsilon: float) -> LayerNorm:
    return LayerNorm(weight, epsilon, weight.flip(-1))


@pytest.mark.slow
@pytest.mark.parametrize("make", [RMSNorm, make_layer_norm_with_bias])
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), shape=st.sampled_from([(1,), (37,), (64,), (5, 24)]),
       seed=st.integers(0, 9))
@settings(max_examples=40)
def test_norm_does_not_depend_on_other_rows(make: MakeNorm, dtype: torch.dtype, *, num_rows: int, place: int,
                                            shape: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    norm = make(torch.rand(shape, dtype=dtype), 1e-6)
    pair, place = torch.randn(2, *shape, dtype=dtype), place % (num_rows - 1)
    rows = torch.randn(num_rows, *shape, dtype=dtype)
    rows[place:place + 2] = pair
    assert torch.equal(norm(rows)[place:place + 2], norm(pair))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.0, 0.001, 100.0])
def test_rms_norm_matches_llama(dtype: torch.dtype, size: float) -> None:
    rows, llama_norm = torch.randn(20, 64, dtype=dtype) * size, LlamaRMSNorm(64, 1e-5).to(dtype)
    llama_norm.weight.data.uniform_(0.5, 1.5)
    torch.testing.assert_close(RMSNorm(llama_norm.weight.data, 1e-5)(rows), llama_norm(rows).detach())


# -- LayerNorm


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), width=st.sampled_from([1, 7, 37, 64, 768, 4544]),
       biased=st.booleans())
@settings(max_examples=60)
def test_layer_norm_does_not_depend_on_other_rows(
        dtype: torch.dtype, num_rows: int, place: int, width: int, biased: bool) -> None:
    torch.manual_seed(num_rows)
    weight, bias = torch.randn(2, width, dtype=dtype)
    norm = LayerNorm(weight, 1e-5, bias if biased else None)
    row, place = 3 + torch.randn(1, width, dtype=dtype), place % num_rows
    rows = torch.randn(num_rows, width, dtype=dtype)
    rows[place] = row
    assert torch.equal(norm(rows)[place], norm(row)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [None, torch.linspace(-2.0, 2.0, 64)])
def test_layer_norm_subtracts_the_mean_before_scaling(dtype: torch.dtype, bias: Tensor | None) -> None:
    rows, weight = 5 + torch.randn(20, 64, dtype=dtype), torch.rand(64, dtype=dtype)
    bias = None if bias is None else bias.to(dtype)
    expected = functional.layer_norm(rows, (64,), weight, bias, 1e-5)
    torch.testing.assert_close(LayerNorm(weight, 1e-5, bias)(rows), expected)
    centred = LayerNorm(torch.ones(64), 1e-5)(rows.float())
    assert float(centred.mean(-1).abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.0, 0.001, 100.0])
def test_norm_with_float32_weight_rounds_after_its_weight(dtype: torch.dtype, size: float) -> None:
    rows, weight = torch.randn(20, 64, dtype=dtype) * size, torch.rand(64, dtype=dtype)
    for oracle, float32_weight in ((GemmaRMSNorm(64, 1e-5), weight.float() + 1),
                                   (Olmo2RMSNorm(64, 1e-5), weight.float())):
        oracle.weight.data = weight
        torch.testing.assert_close(Fp32WeightRMSNorm(float32_weight, 1e-5)(rows), oracle(rows).detach())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64,), (5, 24)], ids=str)
def test_layer_norm_without_bias_matches_cohere(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows, cohere_norm = 3 + torch.randn(20, *shape, dtype=dtype), CohereLayerNorm(shape, 1e-5).to(dtype)
    cohere_norm.weight.data.uniform_(0.5, 1.5)
    torch.testing.assert_close(LayerNorm(cohere_norm.weight.data, 1e-5)(rows), cohere_norm(rows).detach())


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_with_bias_matches_torch(dtype: torch.dtype) -> None:
    rows, torch_norm = 3 + torch.randn(20, 64, dtype=dtype), nn.LayerNorm(64, 1e-5).to(dtype)
    torch_norm.weight.data.uniform_(0.5, 1.5)
    torch_norm.bias.data.normal_()
    layer_norm = LayerNorm(torch_norm.weight.data, 1e-5, torch_norm.bias.data)
    torch.testing.assert_close(layer_norm(rows), torch_norm(rows).detach())


# -- every delta is added to the residual once and in order, whichever method is called next


@given(st.lists(st.sampled_from(["add", "norm", "look"]), max_size=12), st.integers(0, 99))
def test_norm_adds_pending_deltas_first(steps: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    norm, x = RMSNorm(torch.rand(8), 1e-5), torch.randn(3, 8).bfloat16()
    residual, expected = ResidualStream(x), x.clone()
    for step in steps:
        match step:
            case "add":
                delta = torch.randn(3, 8).bfloat16()
                residual.add_deferred(delta)
                expected += delta
            case "norm":
                assert torch.equal(residual.apply_pending_and_norm(norm), norm(expected))
            case _:
                assert torch.equal(residual.apply_pending(), expected)
    assert torch.equal(residual.apply_pending(), expected)
    assert residual.apply_pending() is x


def test_delta_added_by_a_norm_is_not_added_again() -> None:
    added_deltas: list[Tensor] = []

    class RecordingNorm(RMSNorm):
        def __call__(self, x: Tensor, delta: Tensor | None = None) -> Tensor:
            if delta is not None:
                added_deltas.append(delta)
            return super().__call__(x, delta)

    residual, norm, delta = (ResidualStream(torch.ones(1, 4)), RecordingNorm(torch.ones(4), 1e-5),
                             torch.full((1, 4), 2.0))
    residual.apply_pending_and_norm(norm)
    residual.add_deferred(delta)
    residual.apply_pending_and_norm(norm)
    residual.apply_pending_and_norm(norm)
    assert len(added_deltas) == 1
    assert residual.apply_pending().tolist() == [[3.0] * 4]
