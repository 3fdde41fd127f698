"""Qwen3-MoE: Qwen3 with a mixture of experts in all layers but those that config.json names."""

from shard.json_config import JsonConfig
from shard.models.common_config import check_activation, parse_common_config, read_sliding_windows
from shard.models.decoder import Decoder, ModelReader, read_decoder
from shard.models.llama import GatedMlp, LlamaLayer, SelfAttention
from shard.models.mixtral import MoeBlock, MoeConfig, MoeModuleNames, mark_not_capturable, validate_moe_config
from shard.models.qwen3 import read_qk_norm

MODULE_NAMES = MoeModuleNames("mlp", "gate_proj", "up_proj", "down_proj")


def parse_qwen3_moe_config(hf_config: JsonConfig) -> MoeConfig:
    check_activation(hf_config, "silu")
    num_layers = hf_config.get_positive_int("num_hidden_layers")
    slides = hf_config.get_bool("use_sliding_window", default=False)
    newer = hf_config.get("num_experts") is None
    config: MoeConfig = parse_common_config(
        hf_config, MoeConfig, attention_bias=hf_config.get_bool("attention_bias", default=False),
        sliding_windows=read_sliding_windows(hf_config, num_layers, enabled_by_default=True) if slides else (),
        num_experts=hf_config.get_positive_int("num_local_experts" if newer else "num_experts", 128),
        num_experts_per_token=hf_config.get_positive_int("num_experts_per_tok", 8),
        expert_intermediate_size=hf_config.get_positive_int("moe_intermediate_size", 768),
        normalize_routing_weights=hf_config.get_bool("norm_topk_prob", default=False),
        dense_layers=list_dense_layer_indices(hf_config, num_layers))
    return validate_moe_config(config, hf_config)


def list_dense_layer_indices(hf_config: JsonConfig, num_layers: int) -> tuple[int, ...]:
    named, step = hf_config.get("mlp_only_layers") or (), hf_config.get_positive_int("decoder_sparse_step", 1)
    return tuple(layer for layer in range(num_layers) if layer in named or (layer + 1) % step)


def read_layer(source: ModelReader[MoeConfig], layer: int) -> LlamaLayer:
    bias = source.config.attention_bias
    attention = SelfAttention(source, layer, qkv_bias=bias, output_bias=bias, qk_norm=read_qk_norm(source, layer))
    is_dense = layer in source.config.dense_layers
    return LlamaLayer(source, layer, attention,
                      GatedMlp(source, layer, bias=False) if is_dense else MoeBlock(source, layer, MODULE_NAMES))


def read_qwen3_moe(source: ModelReader[MoeConfig]) -> Decoder:
    return mark_not_capturable(read_decoder(source, read_layer))
