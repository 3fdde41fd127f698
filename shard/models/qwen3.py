"""Qwen3: Llama with QK norm per head."""

from typing import Any

import torch
from torch import Tensor

from shard.json_config import Given
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.hf_config import describe, refuse_activation
from shard.models.llama import LlamaLayer, Mlp, SelfAttention
from shard.models.qwen2 import slides
from shard.ops.norm import RMSNorm


def describe_qwen3(given: Given) -> ModelConfig:
    refuse_activation(given, "silu")
    config: ModelConfig = describe(given, attention_bias=given.flag("attention_bias", default=False),
                                   windows=slides(given))
    return config


def read_head_norm(source: Source[ModelConfig], layer: int) -> RMSNorm:
    return RMSNorm(head_norm_weights(source, layer), source.config.norm_epsilon)


def head_norm_weights(source: Source[Any], layer: int) -> Tensor:
    """Return the weights of one norm for queries and keys together, `[heads + kv heads, head_dim]`."""
    shape, name = (source.config.head_dim,), f"{source.prefix}.layers.{layer}.self_attn"
    queries, keys = (source.weights.whole(f"{name}.{norm}.weight", shape) for norm in ("q_norm", "k_norm"))
    return torch.stack([queries] * len(source.heads) + [keys] * len(source.kv_heads))


def read_layer(source: Source[ModelConfig], layer: int) -> LlamaLayer:
    bias = source.config.attention_bias
    attention = SelfAttention(
        source, layer, qkv_bias=bias, output_bias=bias, head_norm=read_head_norm(source, layer))
    return LlamaLayer(source, layer, attention, Mlp(source, layer, bias=False))


def read_qwen3(source: Source[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer)
