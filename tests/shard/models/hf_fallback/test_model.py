from typing import Any

import torch
from torch import Tensor, nn

from shard.models.hf_fallback.model import (
    WORD,
    Echo,
    ForeignModel,
    Question,
    Replaced,
    attend,
    replace_products,
    with_part,
)
from shard.parallel.group import Alone
from tests.shard.side_by_side import side_by_side


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"list": nn.ModuleList(nn.Linear(4, 4) for _ in range(count))})

    def forward(self, input_ids: Tensor, position_ids: Tensor, **words: Any) -> list[Tensor]:
        x = (input_ids + position_ids)[..., None].float().expand(-1, -1, 4)
        for layer in self.inner["list"]:  # type: ignore[union-attr]
            x = layer(x)
        return [x]


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = Echo(), nn.Linear(4, 7)

    def forward(self, **words: Any) -> Any:
        said = self.layers(**words)
        assert said.anything_else is None
        said.logits = self.head(said[0])
        return said


def foreign(group: Any = None) -> ForeignModel:
    return ForeignModel(None, group or Alone(), Layers(3), Whole(), ("inner", "list"))  # type: ignore[arg-type]


def test_a_question_of_attention_reaches_who_listens() -> None:
    module, x = nn.Module(), torch.zeros(1, 2, 3, 4)
    heard: list[Question] = []
    said, weights = attend(module, x, x, x, None, scaling=2.0, **{WORD: lambda asked: heard.append(asked) or x})
    assert said is x
    assert weights is None
    assert heard[0].module is module
    assert heard[0].words == {"scaling": 2.0}


def test_a_model_is_cut_without_touching_the_whole() -> None:
    model = foreign()
    cut = model.cut(1)
    assert (cut.num_layers, model.num_layers) == (1, 3)
    assert cut._layers.inner["list"][0] is model._layers.inner["list"][0]  # type: ignore[index,union-attr]


def test_layers_that_differ_in_their_products_are_of_different_kinds() -> None:
    model = foreign()
    assert model.num_varied == 1
    layers: Any = model._layers.inner["list"]  # type: ignore[index]
    layers[1] = Replaced(layers[1])
    assert model.num_varied == 2


def test_a_copy_with_another_part_shares_the_rest() -> None:
    module = nn.Sequential(nn.Sequential(nn.Identity(), nn.Identity()), nn.Identity())
    copied = with_part(module, ("0", "1"), nn.Tanh())
    assert isinstance(copied.get_submodule("0.1"), nn.Tanh)
    assert isinstance(module.get_submodule("0.1"), nn.Identity)
    assert copied.get_submodule("0.0") is module.get_submodule("0.0")


def test_only_the_first_rank_has_logits() -> None:
    first, second = side_by_side(2, lambda group: foreign(group).logits(torch.zeros(5, 4)))
    assert first.shape == (5, 7)
    assert second is None


def test_products_are_replaced_wherever_they_stand() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 2, bias=False)))
    x = torch.randn(2, 3, 4)
    expected = module(x)
    replace_products(module.requires_grad_(False))
    torch.testing.assert_close(module(x), expected)
    assert [part.width for part in module.modules() if isinstance(part, Replaced)] == [4, 6]
