from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.model_runs.ranks_in_threads import InProcessRankGroup, run_on_ranks
from torch import Tensor, nn

from shard.models.hf_fallback.model import (
    CALLBACK_KEYWORD,
    AttentionCallArguments,
    FallbackModel,
    IdentityDecoder,
    LinearReplacement,
    replace_linears,
    replace_submodule_in_copy,
    split_linears,
    weft_attention_forward,
)
from shard.parallel.group import SingleRankGroup


class FakeLayerModel(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"list": nn.ModuleList(nn.Linear(4, 4) for _ in range(count))})

    def forward(self, input_ids: Tensor, position_ids: Tensor, **extra_arguments: Any) -> list[Tensor]:
        x = (input_ids + position_ids)[..., None].float().expand(-1, -1, 4)
        for layer in self.inner["list"]:  # type: ignore[union-attr]
            x = layer(x)
        return [x]


class FakeLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = IdentityDecoder(), nn.Linear(4, 7)

    def forward(self, **arguments: Any) -> Any:
        output = self.layers(**arguments)
        assert output.anything_else is None
        output.logits = self.head(output[0])
        return output


def make_fallback_model(group: Any = None) -> FallbackModel:
    config: Any = SimpleNamespace(num_kv_heads=2)
    return FallbackModel(config, group or SingleRankGroup(), FakeLayerModel(3), FakeLanguageModel(), ("inner", "list"))


def test_attention_call_reaches_the_listener() -> None:
    module, x = nn.Module(), torch.zeros(1, 2, 3, 4)
    calls: list[AttentionCallArguments] = []
    output, weights = weft_attention_forward(module, x, x, x, None, scaling=2.0,
                                             **{CALLBACK_KEYWORD: lambda call: calls.append(call) or x})
    assert output is x
    assert weights is None
    assert calls[0].module is module
    assert calls[0].extra_arguments == {"scaling": 2.0}


def test_truncating_layers_does_not_change_the_model() -> None:
    model = make_fallback_model()
    truncated = model.copy_first_layers(1)
    assert (truncated.num_layers, model.num_layers) == (1, 3)
    assert truncated._layers.inner["list"][0] is model._layers.inner["list"][0]  # type: ignore[index,union-attr]


def test_layers_with_different_linears_are_counted_separately() -> None:
    model = make_fallback_model()
    assert model.num_representative_layers == 1
    layers: Any = model._layers.inner["list"]  # type: ignore[index]
    layers[1] = LinearReplacement(layers[1])
    assert model.num_representative_layers == 2


def test_copy_with_a_replaced_submodule_shares_the_rest() -> None:
    module = nn.Sequential(nn.Sequential(nn.Identity(), nn.Identity()), nn.Identity())
    copied = replace_submodule_in_copy(module, ("0", "1"), nn.Tanh())
    assert isinstance(copied.get_submodule("0.1"), nn.Tanh)
    assert isinstance(module.get_submodule("0.1"), nn.Identity)
    assert copied.get_submodule("0.0") is module.get_submodule("0.0")


def test_only_the_first_rank_has_logits() -> None:
    first, second = run_on_ranks(2, lambda group: make_fallback_model(group).compute_logits(torch.zeros(5, 4)))
    assert first.shape == (5, 7)
    assert second is None


def test_linears_are_replaced_at_any_depth() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 2, bias=False)))
    x = torch.randn(2, 3, 4)
    expected = module(x)
    replace_linears(module.requires_grad_(False))
    torch.testing.assert_close(module(x), expected)
    assert [part.in_features for part in module.modules() if isinstance(part, LinearReplacement)] == [4, 6]


# ---------------------------------------------------------------------------------------------------------------------
# Split over the ranks


TENSOR_PARALLEL_PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise",
                        "layers.*.norm": "replicated_with_grad_allreduce"}


class SmallLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)))


def make_unsplit_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Module()
    model.layers = nn.ModuleList([SmallLayer(), SmallLayer()])
    return model.requires_grad_(False)


def run_layers(module: nn.Module, x: Tensor) -> Tensor:
    for layer in module.layers:  # type: ignore[union-attr]
        x = layer(x)
    return x


@pytest.mark.parametrize("size", [2, 4])
def test_split_model_gives_the_output_of_the_whole_model(size: int) -> None:
    def split_and_run(group: InProcessRankGroup) -> Tensor:
        module = models[group.rank]
        split_linears(module, TENSOR_PARALLEL_PLAN, group, group.all_reduce_sum)
        return run_layers(module, x)

    x, models = torch.randn(3, 4), [make_unsplit_model() for _ in range(size)]
    first, *others = run_on_ranks(size, split_and_run)
    torch.testing.assert_close(first, run_layers(make_unsplit_model(), x))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(("plan", "size", "reason"), [
    ({"layers.*.up": "packed_colwise"}, 2, "split as packed_colwise"),
    ({"layers.*.norm": "colwise"}, 2, "layers.0.norm is a LayerNorm, which cannot be split"),
    ({"layers.*.up": "colwise"}, 3, "8 cannot be shared evenly by 3 shards"),
])
def test_invalid_plan_is_rejected(plan: dict[str, str], size: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split_linears(make_unsplit_model(), plan, InProcessRankGroup(0, size, None), lambda x: x)  # type: ignore[arg-type]
