from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shard.models.hf_fallback.model import attend
from shard.models.hf_fallback.probe import META, Unsuitable, look_at, path_of, stand_in, windows_of


class Attends(nn.Module):
    def __init__(self, layer: int, words: dict[str, Any], values: int) -> None:
        super().__init__()
        self.layer_idx, self._words, self._values = layer, words, values

    def forward(self, count: int, mask: object, **words: Any) -> Tensor:
        queries, keys, values = (torch.empty(1, heads, count, width, device=META)
                                 for heads, width in ((4, 8), (2, 8), (2, self._values)))
        return attend(self, queries, keys, values, mask, **self._words, **words)[0]


class Layers(nn.Module):
    def __init__(self, *layers: dict[str, Any], mask: object = None, values: int = 8, numbers: int = 0) -> None:
        super().__init__()
        self._mask, self._numbers = mask, numbers
        self.blocks = nn.ModuleList(Attends(layer, words, values) for layer, words in enumerate(layers))

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, use_cache: bool,
                **words: Any) -> list[Tensor]:
        for block in list(self.blocks)[self._numbers:]:
            x = block(input_ids.shape[1], self._mask, **words)
        return [x.flatten(2)]


class Head(nn.Module):
    def forward(self, inputs_embeds: Tensor, use_cache: bool) -> Any:
        self.logits = inputs_embeds
        return self


def test_what_layers_ask_is_found_out() -> None:
    layers = Layers({"scaling": 0.5, "softcap": 30.0}, {"scaling": 0.5, "softcap": 30.0, "dropout": 0.0})
    asked, width = look_at(layers, Head())
    assert width == 32
    assert [(one.num_heads, one.num_kv_heads, one.head_dim, one.scale, one.softcap) for one in asked] == [
        (4, 2, 8, 0.5, 30.0)] * 2
    assert windows_of(asked) == ()
    assert path_of(layers, asked[0].module) == ("blocks",)


def test_windows_are_those_of_the_masks() -> None:
    asked, _ = look_at(Layers({}, {}, mask=stand_in(q_length=2, local_size=24)), Head())
    assert windows_of(asked) == (24, 24)


@pytest.mark.parametrize(("layers", "reason"), [
    (Layers(), "UnboundLocalError"),
    (Layers({}, {}, numbers=1), "do not attend one after the other"),
    (Layers({}, values=4), r"differ in width \(8, 8, 4\)"),
    (Layers({"sinks": 1.0}), "its attention depends on sinks"),
    (Layers({"is_causal": False}), "its tokens look at later ones"),
    (Layers({}, mask=torch.empty(1, 1, 2, 2)), "it makes masks of its own"),
    (Layers({"sliding_window": 8}), "a window of 8 that its mask does not have"),
    (Layers({"scaling": 0.5}, {"scaling": 0.25}), r"its layers differ in scale \(0.25, 0.5\)"),
])
def test_what_attention_does_not_do_is_unsuitable(layers: Layers, reason: str) -> None:
    with pytest.raises(Unsuitable, match=reason):
        look_at(layers, Head())


def test_masks_that_are_put_together_are_unsuitable() -> None:
    with pytest.raises(Unsuitable, match="masks of its own"):
        stand_in(q_length=2, use_vmap=True)


def test_layers_must_be_told_positions() -> None:
    with pytest.raises(Unsuitable, match="cannot be told the positions"):
        look_at(nn.Identity(), Head())
