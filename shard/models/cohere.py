"""Cohere's Command R and Aya: parallel attention and MLP after one norm, rotary embedding of adjacent values.

Written as for one device: tensor parallelism is in the linears.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.json_config import Given
from shard.layers.attention_input import Turn
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.hf_config import describe, refuse_activation
from shard.models.llama import Mlp, SelfAttention
from shard.models.rope_config import read_rotary
from shard.ops.norm import LayerNorm
from shard.ops.residual import Residual

USUAL = {"max_position_embeddings": 8192, "rope_theta": 500_000.0, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
         "tie_word_embeddings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereConfig(ModelConfig):
    logit_scale: float
    head_norms: bool  # whether every query and key head has a norm


class CohereLayer:
    def __init__(self, source: Source[CohereConfig], layer: int, attention: SelfAttention, mlp: Mlp) -> None:
        self._norm = read_norm(source, f"{source.prefix}.layers.{layer}.input_layernorm")
        self._attention, self._mlp = attention, mlp
        self.products = attention.products + mlp.products

    def __call__(self, x: Residual, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        both = x.normed(self._norm)
        x.add(self._attention(both, turn, inputs, cache, attention))
        x.add(self._mlp(both))


def describe_cohere(given: Given) -> CohereConfig:
    refuse_activation(given, "silu")
    told = given.usually(**USUAL)
    rotary = replace(read_rotary(told, told.count("max_position_embeddings")), neighbours=True)
    config: CohereConfig = describe(
        told, CohereConfig, rotary=rotary, norm_epsilon=told.number("layer_norm_eps"),
        logit_scale=told.number("logit_scale"), head_norms=told.flag("use_qk_norm", default=False),
        attention_bias=told.flag("attention_bias", default=False))
    return config


def read_norm(source: Source[Any], name: str) -> LayerNorm:
    return LayerNorm(source.norm_weight(name), source.config.norm_epsilon)


def read_head_norm(source: Source[CohereConfig], layer: int) -> LayerNorm:
    """Return one norm for queries and keys together. Every head has weights of its own."""
    config, name = source.config, f"{source.prefix}.layers.{layer}.self_attn"
    heads = (("q_norm", config.num_heads, source.heads), ("k_norm", config.num_kv_heads, source.kv_heads))
    weights = [source.weights.rows(f"{name}.{norm}.weight", (number, config.head_dim), mine)
               for norm, number, mine in heads]
    return LayerNorm(torch.cat(weights), config.norm_epsilon)  # [heads + kv heads, head_dim]


def read_layer(source: Source[CohereConfig], layer: int) -> CohereLayer:
    bias = source.config.attention_bias
    norm = read_head_norm(source, layer) if source.config.head_norms else None
    attention = SelfAttention(source, layer, qkv_bias=bias, output_bias=bias, head_norm=norm)
    return CohereLayer(source, layer, attention, Mlp(source, layer, bias=False))


def read_cohere(source: Source[CohereConfig]) -> Decoder:
    decoder, scale = read_decoder(source, read_layer, read_norm), source.config.logit_scale
    return replace(decoder, head=decoder.head.finished(lambda logits: logits.mul_(scale)))
