"""Gemma 2: Gemma with norms before and after attention and MLP, soft-capped scores and logits, and a sliding window in
every other layer."""

import math
from dataclasses import dataclass, replace
from typing import Any

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.json_config import Given
from shard.layers.attention_input import Turn
from shard.layers.embedding import Head
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.gemma import ACTIVATION, describe_any, norm_from_one, scaled
from shard.models.hf_config import read_windows, refuse_activation
from shard.models.llama import Mlp, SelfAttention
from shard.ops.residual import Residual

USUAL = {"sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
         "final_logit_softcapping": 30.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(ModelConfig):
    logit_softcap: float = 0.0  # soft limit of the logits; 0: none


class Gemma2Layer:
    def __init__(self, source: Source[Any], layer: int, attention: SelfAttention, mlp: Mlp) -> None:
        name = f"{source.prefix}.layers.{layer}"
        self._attention, self._mlp = attention, mlp
        self._before_attention = norm_from_one(source, f"{name}.input_layernorm")
        self._after_attention = norm_from_one(source, f"{name}.post_attention_layernorm")
        self._before_mlp = norm_from_one(source, f"{name}.pre_feedforward_layernorm")
        self._after_mlp = norm_from_one(source, f"{name}.post_feedforward_layernorm")
        self.products = attention.products + mlp.products

    def __call__(self, x: Residual, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        x.add(self._after_attention(
            self._attention(x.normed(self._before_attention), turn, inputs, cache, attention)))
        x.add(self._after_mlp(self._mlp(x.normed(self._before_mlp))))


def describe_gemma2(given: Given) -> Gemma2Config:
    refuse_activation(given, ACTIVATION)
    told = given.usually(**USUAL)
    config: Gemma2Config = describe_any(
        told, Gemma2Config, windows=alternating(told, 2), scale=query_scale(told),
        softcap=bound(told, "attn_logit_softcapping"), logit_softcap=bound(told, "final_logit_softcapping"))
    return config


def bound(given: Given, name: str) -> float:
    return 0.0 if given.get(name) is None else given.number(name)


def query_scale(given: Given) -> float:
    return 1 / math.sqrt(given.number("query_pre_attn_scalar"))


def alternating(given: Given, period: int) -> tuple[int, ...]:
    """Return the window sizes by layer: as in `layer_types`, or a window in all layers but the last of each period."""
    num_layers = given.count("num_hidden_layers")
    kinds = given.get("layer_types") or [
        "full_attention" if layer % period == period - 1 else "sliding_attention" for layer in range(num_layers)]
    size = given.count("sliding_window") if "sliding_attention" in kinds else None
    return read_windows(Given({"layer_types": kinds, "sliding_window": size}, given.source), num_layers, usual=True)


def capped(head: Head, softcap: float) -> Head:
    """Return the head with logits soft-capped at `softcap`; 0: unchanged."""
    return head.finished(lambda logits: logits.div_(softcap).tanh_().mul_(softcap)) if softcap else head


def read_layer(source: Source[Gemma2Config], layer: int) -> Gemma2Layer:
    bias = source.config.attention_bias
    return Gemma2Layer(source, layer, SelfAttention(source, layer, qkv_bias=bias, output_bias=bias),
                       Mlp(source, layer, bias=False, activation=ACTIVATION))


def read_gemma2(source: Source[Gemma2Config]) -> Decoder:
    decoder = scaled(read_decoder(source, read_layer, norm_from_one), source.weights.dtype)
    return replace(decoder, head=capped(decoder.head, source.config.logit_softcap))
