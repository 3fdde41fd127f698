"""Probe of the attention that a foreign module needs, by one run on torch's meta device. Attention that our backends do
not support, or that the probe cannot determine, raises `UnsupportedModel` with the reason."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shard.models.hf_fallback.model import AttentionCallArguments, run_backbone, run_head

META_DEVICE = torch.device("meta")
# Keyword arguments of attention that the probe handles, or that make no difference in serving.
HANDLED_ARGUMENTS = {"dropout", "scaling", "sliding_window", "softcap", "is_causal", "position_ids",
                     "position_embeddings", "cache_position", "use_cache", "output_attentions", "output_hidden_states",
                     "output_router_logits", "return_dict"}


class UnsupportedModel(Exception):
    """Raised if a model cannot run over our cache, with the reason."""


@dataclass(frozen=True, slots=True)
class LayerAttentionSpec:
    """Attention that one layer needs."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float | None
    softcap: float
    window: int


class ProbeMask(torch.Tensor):
    """Placeholder of a mask in a run on the meta device, which records its window."""

    window: int


def make_probe_mask(*, q_length: int, local_size: int | None = None, use_vmap: bool = False, **_: Any) -> Tensor:
    if use_vmap:
        raise UnsupportedModel("it makes masks of its own")
    mask = torch.empty(1, 1, q_length, q_length, dtype=torch.bool, device=META_DEVICE).as_subclass(ProbeMask)
    mask.window = local_size or 0
    return mask


class AttentionProbe:
    """Listener of a run on the meta device, which records the attention that each layer needs."""

    def __init__(self) -> None:
        self.layer_attentions: list[LayerAttentionSpec] = []

    def __call__(self, call: AttentionCallArguments) -> Tensor:
        module, queries, keys, values, mask, extra_arguments = call
        if getattr(module, "layer_idx", None) != len(self.layer_attentions):
            raise UnsupportedModel("its layers do not attend one after the other")
        if keys.shape != values.shape or keys.shape[-1] != queries.shape[-1]:
            raise UnsupportedModel(
                f"its queries, keys and values differ in width ({queries.shape[-1]}, {keys.shape[-1]}, "
                f"{values.shape[-1]})")
        if more := sorted(name for name in extra_arguments.keys() - HANDLED_ARGUMENTS
                          if extra_arguments[name] is not None):
            raise UnsupportedModel(f"its attention depends on {', '.join(more)}")
        if extra_arguments.get("is_causal", getattr(module, "is_causal", True)) is False:
            raise UnsupportedModel("its tokens look at later ones")
        self.layer_attentions.append(LayerAttentionSpec(module, queries.shape[1], keys.shape[1], keys.shape[-1],
                                                        extra_arguments.get("scaling"), extra_arguments.get("softcap")
                                                        or 0.0, determine_mask_window(mask, extra_arguments)))
        return queries.transpose(1, 2)


def determine_mask_window(mask: object, extra_arguments: dict[str, Any]) -> int:
    if mask is not None and not isinstance(mask, ProbeMask):
        raise UnsupportedModel("it makes masks of its own")
    window = 0 if mask is None else mask.window
    if (extra_arguments.get("sliding_window") or window) != window:
        raise UnsupportedModel(
            f"it tells attention of a window of {extra_arguments['sliding_window']} that its mask does not have")
    return window


def find_layer_attention_specs(layers: nn.Module, head: nn.Module) -> tuple[list[LayerAttentionSpec], int]:
    """Run the model on the meta device and return each layer's attention and the width of hidden states."""
    if "position_ids" not in inspect.signature(inspect.unwrap(type(layers).forward)).parameters:
        raise UnsupportedModel("it cannot be told the positions of tokens")
    probe, two_tokens = AttentionProbe(), torch.zeros(2, dtype=torch.int64, device=META_DEVICE)
    try:
        # With a mask that excludes no token, transformers does not search the positions for packed sequences.
        hidden = run_backbone(layers, two_tokens, two_tokens, probe,
                              attention_mask=torch.ones(1, 2, dtype=torch.bool, device=META_DEVICE))
        run_head(head, hidden)
    except UnsupportedModel:
        raise
    except Exception as error:  # anything that fails on the meta device, or if layers do not pass on the listener
        raise UnsupportedModel(f"its layers cannot be looked at ({type(error).__name__}: {error})") from error
    if not probe.layer_attentions:
        raise UnsupportedModel("its layers do not attend")
    for field_name in ("num_heads", "num_kv_heads", "head_dim", "scale", "softcap"):
        if len(values := {getattr(layer, field_name) for layer in probe.layer_attentions}) > 1:
            raise UnsupportedModel(f"its layers differ in {field_name} ({', '.join(map(str, sorted(values)))})")
    return probe.layer_attentions, hidden.shape[-1]


def list_sliding_windows(layer_attentions: list[LayerAttentionSpec]) -> tuple[int, ...]:
    windows = tuple(layer.window for layer in layer_attentions)
    return windows if any(windows) else ()


def find_layers_path(layers: nn.Module, attention_module: nn.Module) -> tuple[str, ...]:
    """Return the submodule path to the list of layers. `attention_module`: attention module of the first layer."""
    parts = next(name for name, module in layers.named_modules() if module is attention_module).split(".")
    if "0" not in parts:
        raise UnsupportedModel("its layers are not in a list")
    return tuple(parts[:parts.index("0")])
