"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values. Qwen3: Llama with QK norm per head. Qwen3-MoE:
Qwen3 with a mixture of experts in all layers but those that config.json names."""

from typing import Any

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.models.config import ModelConfig, check_activation, parse_common_config, parse_sliding_windows
from shard.models.decoder import Decoder, ModelLoader, load_decoder
from shard.models.decoder_layers import GatedMlp, PreNormLayer, load_attention, load_pre_norm_layer
from shard.models.mixtral import MoeBlock, MoeConfig, MoeModuleNames, mark_not_capturable, parse_moe_config
from shard.ops.norm import RMSNorm

MOE_MODULE_NAMES = MoeModuleNames("mlp", "gate_proj", "up_proj", "down_proj")


def parse_qwen2_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    return parse_common_config(hf_config, ModelConfig, attention_bias=True,
                               sliding_windows=parse_qwen_windows(hf_config))


def parse_qwen3_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    return parse_common_config(hf_config, ModelConfig, attention_bias=hf_config.get_bool("attention_bias"),
                               sliding_windows=parse_qwen_windows(hf_config))


def parse_qwen3_moe_config(hf_config: JsonConfig) -> MoeConfig:
    num_layers = hf_config.get_positive_int("num_hidden_layers")
    slides = hf_config.get_bool("use_sliding_window")
    newer = hf_config.get("num_experts") is None
    return parse_moe_config(
        hf_config, attention_bias=hf_config.get_bool("attention_bias"),
        sliding_windows=parse_sliding_windows(hf_config, num_layers, enabled_by_default=True) if slides else (),
        num_experts=hf_config.get_positive_int("num_local_experts" if newer else "num_experts", 128),
        num_experts_per_token=hf_config.get_positive_int("num_experts_per_tok", 8),
        expert_intermediate_size=hf_config.get_positive_int("moe_intermediate_size", 768),
        normalize_routing_weights=hf_config.get_bool("norm_topk_prob"),
        dense_layers=list_dense_layer_indices(hf_config, num_layers))


def parse_qwen_windows(hf_config: JsonConfig) -> tuple[int, ...]:
    """Return the window sizes by layer. Older files give the first layer with a window, if windows are used at all."""
    num_layers = hf_config.get_positive_int("num_hidden_layers")
    if not hf_config.get_bool("use_sliding_window") or hf_config.get("layer_types"):
        return parse_sliding_windows(hf_config, num_layers, enabled_by_default=False)
    first, size = hf_config.get("max_window_layers"), hf_config.get("sliding_window") or 0
    return tuple(size if layer >= (28 if first is None else first) else 0 for layer in range(num_layers))


def list_dense_layer_indices(hf_config: JsonConfig, num_layers: int) -> tuple[int, ...]:
    named, step = hf_config.get("mlp_only_layers") or (), hf_config.get_positive_int("decoder_sparse_step", 1)
    return tuple(layer for layer in range(num_layers) if layer in named or (layer + 1) % step)


def read_qk_norm_weights(source: ModelLoader[Any], layer: int) -> Tensor:
    """Return the weights of one norm for queries and keys together, `[heads + kv heads, head_dim]`."""
    shape, name = (source.config.head_dim,), f"{source.prefix}.layers.{layer}.self_attn"
    queries, keys = (source.weights.read_tensor(f"{name}.{norm}.weight", shape) for norm in ("q_norm", "k_norm"))
    return torch.stack([queries] * len(source.head_range) + [keys] * len(source.kv_head_range))


def load_qwen2_layer(source: ModelLoader[ModelConfig], layer: int) -> PreNormLayer:
    return load_pre_norm_layer(source, layer, load_attention(source, layer, output_bias=False), GatedMlp(source, layer))


def load_qwen3_layer(source: ModelLoader[Any], layer: int) -> PreNormLayer:
    norm = RMSNorm(read_qk_norm_weights(source, layer), source.config.norm_epsilon)
    is_moe = isinstance(source.config, MoeConfig) and layer not in source.config.dense_layers
    return load_pre_norm_layer(source, layer, load_attention(source, layer, qk_norm=norm),
                               MoeBlock(source, layer, MOE_MODULE_NAMES) if is_moe else GatedMlp(source, layer))


def load_qwen2(source: ModelLoader[ModelConfig]) -> Decoder:
    return load_decoder(source, load_qwen2_layer)


def load_qwen3(source: ModelLoader[ModelConfig]) -> Decoder:
    return load_decoder(source, load_qwen3_layer)


def load_qwen3_moe(source: ModelLoader[MoeConfig]) -> Decoder:
    return mark_not_capturable(load_decoder(source, load_qwen3_layer))
