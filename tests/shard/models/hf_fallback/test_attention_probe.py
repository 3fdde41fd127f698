from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shard.models.hf_fallback.attention_probe import (
    META_DEVICE,
    UnsupportedModel,
    find_layer_attention_specs,
    find_layers_path,
    list_sliding_windows,
    make_probe_mask,
)
from shard.models.hf_fallback.model import weft_attention_forward


class FakeAttention(nn.Module):
    def __init__(self, layer_index: int, extra_arguments: dict[str, Any], value_dim: int) -> None:
        super().__init__()
        self.layer_idx, self._extra_arguments, self._value_dim = layer_index, extra_arguments, value_dim

    def forward(self, num_tokens: int, mask: object, **extra_arguments: Any) -> Tensor:
        queries, keys, values = (torch.empty(1, heads, num_tokens, width, device=META_DEVICE)
                                 for heads, width in ((4, 8), (2, 8), (2, self._value_dim)))
        return weft_attention_forward(self, queries, keys, values, mask, **self._extra_arguments, **extra_arguments)[0]


class FakeLayerModel(nn.Module):
    def __init__(self, *layers: dict[str, Any], mask: object = None, value_dim: int = 8,
                 num_skipped_layers: int = 0) -> None:
        super().__init__()
        self._mask, self._num_skipped_layers = mask, num_skipped_layers
        self.blocks = nn.ModuleList(FakeAttention(layer, words, value_dim) for layer, words in enumerate(layers))

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, use_cache: bool,
                **extra_arguments: Any) -> list[Tensor]:
        for block in list(self.blocks)[self._num_skipped_layers:]:
            x = block(input_ids.shape[1], self._mask, **extra_arguments)
        return [x.flatten(2)]


class FakeHead(nn.Module):
    def forward(self, inputs_embeds: Tensor, use_cache: bool) -> Any:
        self.logits = inputs_embeds
        return self


def test_attention_settings_of_layers_are_detected() -> None:
    layers = FakeLayerModel({"scaling": 0.5, "softcap": 30.0}, {"scaling": 0.5, "softcap": 30.0, "dropout": 0.0})
    layer_attentions, width = find_layer_attention_specs(layers, FakeHead())
    assert width == 32
    assert [(one.num_heads, one.num_kv_heads, one.head_dim, one.scale, one.softcap) for one in layer_attentions] == [
        (4, 2, 8, 0.5, 30.0)] * 2
    assert list_sliding_windows(layer_attentions) == ()
    assert find_layers_path(layers, layer_attentions[0].module) == ("blocks",)


def test_sliding_windows_are_read_from_masks() -> None:
    layers = FakeLayerModel({}, {}, mask=make_probe_mask(q_length=2, local_size=24))
    layer_attentions, _ = find_layer_attention_specs(layers, FakeHead())
    assert list_sliding_windows(layer_attentions) == (24, 24)


@pytest.mark.parametrize(("layers", "reason"), [
    (FakeLayerModel(), "UnboundLocalError"),
    (FakeLayerModel({}, {}, num_skipped_layers=1), "do not attend one after the other"),
    (FakeLayerModel({}, value_dim=4), r"differ in width \(8, 8, 4\)"),
    (FakeLayerModel({"sinks": 1.0}), "its attention depends on sinks"),
    (FakeLayerModel({"is_causal": False}), "its tokens look at later ones"),
    (FakeLayerModel({}, mask=torch.empty(1, 1, 2, 2)), "it makes masks of its own"),
    (FakeLayerModel({"sliding_window": 8}), "a window of 8 that its mask does not have"),
    (FakeLayerModel({"scaling": 0.5}, {"scaling": 0.25}), r"its layers differ in scale \(0.25, 0.5\)"),
])
def test_unsupported_attention_is_rejected(layers: FakeLayerModel, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        find_layer_attention_specs(layers, FakeHead())


def test_combined_masks_are_rejected() -> None:
    with pytest.raises(UnsupportedModel, match="masks of its own"):
        make_probe_mask(q_length=2, use_vmap=True)


def test_layers_that_take_no_positions_are_rejected() -> None:
    with pytest.raises(UnsupportedModel, match="cannot be told the positions"):
        find_layer_attention_specs(nn.Identity(), FakeHead())
