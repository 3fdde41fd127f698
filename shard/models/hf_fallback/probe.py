"""Probe of the attention that a foreign module needs, by one run on torch's meta device.

Attention that our backends do not support, or that the probe cannot determine, raises `Unsuitable` with the reason.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shard.models.hf_fallback.model import Question, logits, states

META = torch.device("meta")
# Keyword arguments of attention that the probe handles, or that make no difference in serving.
USUAL = {"dropout", "scaling", "sliding_window", "softcap", "is_causal", "position_ids", "position_embeddings",
         "cache_position", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits",
         "return_dict"}


class Unsuitable(Exception):
    """Raised if a model cannot run over our cache, with the reason."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Attention that one layer needs."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float | None
    softcap: float
    window: int


class Mask(torch.Tensor):
    """Placeholder of a mask in a run on the meta device, which records its window."""

    window: int


def stand_in(*, q_length: int, local_size: int | None = None, use_vmap: bool = False, **_: Any) -> Tensor:
    if use_vmap:
        raise Unsuitable("it makes masks of its own")
    mask = torch.empty(1, 1, q_length, q_length, dtype=torch.bool, device=META).as_subclass(Mask)
    mask.window = local_size or 0
    return mask


class Look:
    """Listener of a run on the meta device, which records the attention that each layer needs."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def __call__(self, question: Question) -> Tensor:
        module, queries, keys, values, mask, words = question
        if getattr(module, "layer_idx", None) != len(self.asked):
            raise Unsuitable("its layers do not attend one after the other")
        if keys.shape != values.shape or keys.shape[-1] != queries.shape[-1]:
            raise Unsuitable(f"its queries, keys and values differ in width ({queries.shape[-1]}, {keys.shape[-1]}, "
                             f"{values.shape[-1]})")
        refuse_words(module, words)
        self.asked.append(Asked(module, queries.shape[1], keys.shape[1], keys.shape[-1], words.get("scaling"),
                                words.get("softcap") or 0.0, window_of(mask, words)))
        return queries.transpose(1, 2)


def refuse_words(module: nn.Module, words: dict[str, Any]) -> None:
    if more := sorted(name for name in words.keys() - USUAL if words[name] is not None):
        raise Unsuitable(f"its attention depends on {', '.join(more)}")
    if words.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise Unsuitable("its tokens look at later ones")


def window_of(mask: object, words: dict[str, Any]) -> int:
    if mask is not None and not isinstance(mask, Mask):
        raise Unsuitable("it makes masks of its own")
    window = 0 if mask is None else mask.window
    if (words.get("sliding_window") or window) != window:
        raise Unsuitable(f"it tells attention of a window of {words['sliding_window']} that its mask does not have")
    return window


def look_at(layers: nn.Module, head: nn.Module) -> tuple[list[Asked], int]:
    """Run the model on the meta device and return each layer's attention and the width of hidden states."""
    if "position_ids" not in inspect.signature(inspect.unwrap(type(layers).forward)).parameters:
        raise Unsuitable("it cannot be told the positions of tokens")
    look, two = Look(), torch.zeros(2, dtype=torch.int64, device=META)
    try:
        # With a mask that excludes no token, transformers does not search the positions for packed sequences.
        hidden = states(layers, two, two, look, attention_mask=torch.ones(1, 2, dtype=torch.bool, device=META))
        logits(head, hidden)
    except Unsuitable:
        raise
    except Exception as error:  # anything that fails on the meta device, or if layers do not pass on the listener
        raise Unsuitable(f"its layers cannot be looked at ({type(error).__name__}: {error})") from error
    refuse_differences(look.asked)
    return look.asked, hidden.shape[-1]


def refuse_differences(asked: list[Asked]) -> None:
    if not asked:
        raise Unsuitable("its layers do not attend")
    for what in ("num_heads", "num_kv_heads", "head_dim", "scale", "softcap"):
        if len(values := {getattr(layer, what) for layer in asked}) > 1:
            raise Unsuitable(f"its layers differ in {what} ({', '.join(map(str, sorted(values)))})")


def windows_of(asked: list[Asked]) -> tuple[int, ...]:
    windows = tuple(layer.window for layer in asked)
    return windows if any(windows) else ()


def path_of(layers: nn.Module, attention: nn.Module) -> tuple[str, ...]:
    """Return the submodule path to the list of layers. `attention`: attention module of the first layer."""
    parts = next(name for name, module in layers.named_modules() if module is attention).split(".")
    if "0" not in parts:
        raise Unsuitable("its layers are not in a list")
    return tuple(parts[:parts.index("0")])
