"""Qwen3-MoE: Qwen3 with a mixture of experts in all layers but those that config.json names."""

from shard.json_config import Given
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.hf_config import describe, read_windows, refuse_activation
from shard.models.llama import LlamaLayer, Mlp, SelfAttention
from shard.models.mixtral import Mixture, MixtureConfig, Names, checked, unsteady
from shard.models.qwen3 import read_head_norm

NAMES = Names("mlp", "gate_proj", "up_proj", "down_proj")


def describe_qwen3_moe(given: Given) -> MixtureConfig:
    refuse_activation(given, "silu")
    num_layers = given.count("num_hidden_layers")
    slides = given.flag("use_sliding_window", default=False)
    newer = given.get("num_experts") is None
    config: MixtureConfig = describe(
        given, MixtureConfig, attention_bias=given.flag("attention_bias", default=False),
        windows=read_windows(given, num_layers, usual=True) if slides else (),
        num_experts=given.count("num_local_experts" if newer else "num_experts", 128),
        num_chosen=given.count("num_experts_per_tok", 8), expert_size=given.count("moe_intermediate_size", 768),
        normalised=given.flag("norm_topk_prob", default=False), dense_layers=dense_layers(given, num_layers))
    return checked(config, given)


def dense_layers(given: Given, num_layers: int) -> tuple[int, ...]:
    named, step = given.get("mlp_only_layers") or (), given.count("decoder_sparse_step", 1)
    return tuple(layer for layer in range(num_layers) if layer in named or (layer + 1) % step)


def read_layer(source: Source[MixtureConfig], layer: int) -> LlamaLayer:
    bias = source.config.attention_bias
    attention = SelfAttention(
        source, layer, qkv_bias=bias, output_bias=bias, head_norm=read_head_norm(source, layer))
    is_dense = layer in source.config.dense_layers
    return LlamaLayer(source, layer, attention,
                      Mlp(source, layer, bias=False) if is_dense else Mixture(source, layer, NAMES))


def read_qwen3_moe(source: Source[MixtureConfig]) -> Decoder:
    return unsteady(read_decoder(source, read_layer))
