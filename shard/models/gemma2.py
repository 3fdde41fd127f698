"""Gemma 2: Gemma with norms before and after attention and MLP, soft-capped scores and logits, and a sliding window in
every other layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from shard.json_config import JsonConfig
from shard.layers.embedding import LMHead
from shard.models.config import ModelConfig, check_activation, read_sliding_windows
from shard.models.decoder import Decoder, DecoderLayer, LayerContext, ModelReader, SelectPositions, read_decoder
from shard.models.gemma import ACTIVATION, parse_common_gemma_config, read_gemma_norm, with_scaled_embedding
from shard.models.llama import GatedMlp, SelfAttention, read_attention
from shard.ops.norm import ResidualStream

DEFAULT_SETTINGS = {"sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
                    "final_logit_softcapping": 30.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(ModelConfig):
    """Model config of Gemma 2 models."""

    logit_softcap: float = 0.0  # soft limit of the logits; 0: none


class Gemma2Layer:
    """Decoder layer with norms before and after attention and MLP."""

    def __init__(self, source: ModelReader[Any], layer: int, attention: SelfAttention) -> None:
        name, mlp = f"{source.prefix}.layers.{layer}", GatedMlp(source, layer, activation=ACTIVATION)
        self._attention, self._mlp = attention, mlp
        self._pre_attention_norm = read_gemma_norm(source, f"{name}.input_layernorm")
        self._post_attention_norm = read_gemma_norm(source, f"{name}.post_attention_layernorm")
        self._pre_mlp_norm = read_gemma_norm(source, f"{name}.pre_feedforward_layernorm")
        self._post_mlp_norm = read_gemma_norm(source, f"{name}.post_feedforward_layernorm")
        self.linears = attention.linears + mlp.linears

    def __call__(self, x: ResidualStream, context: LayerContext) -> None:
        x.add_deferred(self._post_attention_norm(
            self._attention(x.apply_pending_and_norm(self._pre_attention_norm), context)))
        x.add_deferred(self._post_mlp_norm(self._mlp(x.apply_pending_and_norm(self._pre_mlp_norm))))


def parse_gemma2_config(hf_config: JsonConfig) -> Gemma2Config:
    check_activation(hf_config, ACTIVATION)
    settings = hf_config.with_defaults_for_absent_keys(**DEFAULT_SETTINGS)
    return parse_common_gemma_config(settings, Gemma2Config, sliding_windows=read_alternating_windows(settings, 2),
                                     attention_scale=read_attention_scale(settings),
                                     attention_softcap=read_softcap(settings, "attn_logit_softcapping"),
                                     logit_softcap=read_softcap(settings, "final_logit_softcapping"))


def read_softcap(hf_config: JsonConfig, name: str) -> float:
    return 0.0 if hf_config.get(name) is None else hf_config.get_positive_number(name)


def read_attention_scale(hf_config: JsonConfig) -> float:
    return 1 / math.sqrt(hf_config.get_positive_number("query_pre_attn_scalar"))


def read_alternating_windows(hf_config: JsonConfig, period: int) -> tuple[int, ...]:
    """Return the window sizes by layer: as in `layer_types`, or a window in all layers but the last of each period."""
    num_layers = hf_config.get_positive_int("num_hidden_layers")
    kinds = hf_config.get("layer_types") or [
        "full_attention" if layer % period == period - 1 else "sliding_attention" for layer in range(num_layers)]
    size = hf_config.get_positive_int("sliding_window") if "sliding_attention" in kinds else None
    return read_sliding_windows(JsonConfig({"layer_types": kinds, "sliding_window": size}, hf_config.source),
                                num_layers, enabled_by_default=True)


def with_logit_softcap(head: LMHead, softcap: float) -> LMHead:
    """Return the head with logits soft-capped at `softcap`; 0: unchanged."""
    return head.with_logits_transform(lambda logits: logits.div_(softcap).tanh_().mul_(softcap)) if softcap else head


def read_layer(source: ModelReader[Gemma2Config], layer: int) -> Gemma2Layer:
    return Gemma2Layer(source, layer, read_attention(source, layer))


def read_gemma2(source: ModelReader[Gemma2Config]) -> Decoder:
    return read_softcapped_decoder(source, read_layer)


def read_softcapped_decoder(source: ModelReader[Any], read_layer: Callable[[ModelReader[Any], int], DecoderLayer],
                            select_positions: SelectPositions | None = None) -> Decoder:
    """Read a decoder with a scaled embedding and soft-capped logits."""
    decoder = with_scaled_embedding(
        read_decoder(source, read_layer, read_gemma_norm, select_positions=select_positions), source.weights.dtype)
    return replace(decoder, head=with_logit_softcap(decoder.head, source.config.logit_softcap))
