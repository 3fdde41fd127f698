"""Qwen3: Llama with QK norm per head."""

from typing import Any

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.models.common_config import check_activation, parse_common_config
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, ModelReader, read_decoder
from shard.models.llama import GatedMlp, LlamaLayer, SelfAttention
from shard.models.qwen2 import read_qwen_windows
from shard.ops.norm import RMSNorm


def parse_qwen3_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    config: ModelConfig = parse_common_config(hf_config,
                                              attention_bias=hf_config.get_bool("attention_bias", default=False),
                                              sliding_windows=read_qwen_windows(hf_config))
    return config


def read_qk_norm(source: ModelReader[ModelConfig], layer: int) -> RMSNorm:
    return RMSNorm(read_qk_norm_weights(source, layer), source.config.norm_epsilon)


def read_qk_norm_weights(source: ModelReader[Any], layer: int) -> Tensor:
    """Return the weights of one norm for queries and keys together, `[heads + kv heads, head_dim]`."""
    shape, name = (source.config.head_dim,), f"{source.prefix}.layers.{layer}.self_attn"
    queries, keys = (source.weights.read_tensor(f"{name}.{norm}.weight", shape) for norm in ("q_norm", "k_norm"))
    return torch.stack([queries] * len(source.head_range) + [keys] * len(source.kv_head_range))


def read_layer(source: ModelReader[ModelConfig], layer: int) -> LlamaLayer:
    bias = source.config.attention_bias
    attention = SelfAttention(source, layer, qkv_bias=bias, output_bias=bias, qk_norm=read_qk_norm(source, layer))
    return LlamaLayer(source, layer, attention, GatedMlp(source, layer, bias=False))


def read_qwen3(source: ModelReader[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer)
