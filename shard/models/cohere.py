"""Cohere's Command R and Aya: parallel attention and MLP after one norm, rotary embedding of adjacent values."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from shard.json_config import JsonConfig
from shard.models.config import ModelConfig, check_activation, parse_common_config, parse_rotary_config
from shard.models.decoder import Decoder, LayerInputs, ModelLoader, load_decoder
from shard.models.decoder_layers import GatedMlp, SelfAttention, load_attention
from shard.ops.norm import LayerNorm, ResidualStream

DEFAULT_SETTINGS = {"max_position_embeddings": 8192, "rope_theta": 500_000.0, "layer_norm_eps": 1e-5,
                    "logit_scale": 0.0625, "tie_word_embeddings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereConfig(ModelConfig):
    logit_scale: float
    has_qk_norm: bool  # whether every query and key head has a norm


class CohereLayer:
    """Decoder layer with attention and MLP in parallel after one norm."""

    def __init__(self, source: ModelLoader[CohereConfig], layer: int, attention: SelfAttention, mlp: GatedMlp) -> None:
        self._input_norm = load_cohere_norm(source, f"{source.prefix}.layers.{layer}.input_layernorm")
        self._attention, self._mlp = attention, mlp
        self.linears = attention.linears + mlp.linears

    def __call__(self, x: ResidualStream, context: LayerInputs) -> None:
        normed = x.apply_pending_and_norm(self._input_norm)
        x.add_deferred(self._attention(normed, context))
        x.add_deferred(self._mlp(normed))


def parse_cohere_config(hf_config: JsonConfig) -> CohereConfig:
    check_activation(hf_config, "silu")
    settings = hf_config.with_defaults_for_absent_keys(**DEFAULT_SETTINGS)
    rotary = replace(parse_rotary_config(settings, settings.get_positive_int("max_position_embeddings")),
                     is_interleaved=True)
    return parse_common_config(
        settings, CohereConfig, rotary=rotary, norm_epsilon=settings.get_positive_number("layer_norm_eps"),
        logit_scale=settings.get_positive_number("logit_scale"), has_qk_norm=settings.get_bool("use_qk_norm"),
        attention_bias=settings.get_bool("attention_bias"))


def load_cohere_norm(source: ModelLoader[Any], name: str) -> LayerNorm:
    return LayerNorm(source.read_norm_weight(name), source.config.norm_epsilon)


def load_layer(source: ModelLoader[CohereConfig], layer: int) -> CohereLayer:
    config, name = source.config, f"{source.prefix}.layers.{layer}.self_attn"
    norm: LayerNorm | None = None
    if config.has_qk_norm:  # one norm for queries and keys together; every head has weights of its own
        heads = (("q_norm", config.num_heads, source.head_range), ("k_norm", config.num_kv_heads, source.kv_head_range))
        weights = [source.weights.read_rows(f"{name}.{norm_name}.weight", (number, config.head_dim), head_range)
                   for norm_name, number, head_range in heads]
        norm = LayerNorm(torch.cat(weights), config.norm_epsilon)  # [heads + kv heads, head_dim]
    return CohereLayer(source, layer, load_attention(source, layer, qk_norm=norm), GatedMlp(source, layer))


def load_cohere(source: ModelLoader[CohereConfig]) -> Decoder:
    decoder, scale = load_decoder(source, load_layer, load_cohere_norm), source.config.logit_scale
    return replace(decoder, head=decoder.head.with_logits_transform(lambda logits: logits.mul_(scale)))
