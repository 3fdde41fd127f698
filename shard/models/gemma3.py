"""Gemma 3: Gemma 2 with QK norm per head, and a separate rotary embedding for layers with a sliding window.

Of multimodal models only the language model is read; images are not supported.
"""

import logging
from dataclasses import dataclass, replace

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig
from shard.models.config import check_activation, read_rotary_config
from shard.models.decoder import Decoder, LayerContext, ModelReader
from shard.models.gemma import ACTIVATION, add_one_to_weight, parse_common_gemma_config
from shard.models.gemma2 import (
    Gemma2Config,
    Gemma2Layer,
    read_alternating_windows,
    read_attention_scale,
    read_softcap,
    read_softcapped_decoder,
)
from shard.models.llama import SelfAttention, read_attention
from shard.models.qwen import read_qk_norm_weights
from shard.ops.norm import Fp32WeightRMSNorm, ResidualStream

# config.json of multimodal models omits most settings
DEFAULT_SETTINGS = {"vocab_size": 262208, "max_position_embeddings": 131072, "num_attention_heads": 8,
                    "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                    "sliding_window_pattern": 6, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
# of tensor names in multimodal models
LANGUAGE_MODEL_PREFIXES = ("language_model.model", "model.language_model", "model")
TOP_LEVEL_SETTINGS = ("architectures", "dtype", "torch_dtype", "tie_word_embeddings")
VISION_PREFIXES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
TIED_HEAD_NAME = "language_model.lm_head.weight"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    """Model config of Gemma 3 models."""

    local_rotary: RotaryConfig  # of layers with a window


class Gemma3Layer(Gemma2Layer):
    """Gemma 2's layer that picks the rotary embedding of its kind of attention."""

    def __init__(self, source: ModelReader[Gemma3Config], layer: int, attention: SelfAttention) -> None:
        super().__init__(source, layer, attention)
        windows = source.config.sliding_windows
        self._rotary_index = int(bool(windows and windows[layer]))  # 0: global attention, 1: with a window

    def __call__(self, x: ResidualStream, context: LayerContext) -> None:
        super().__call__(x, context._replace(rotary=context.rotary[self._rotary_index]))


def parse_gemma3_config(hf_config: JsonConfig) -> Gemma3Config:
    check_activation(hf_config, ACTIVATION)
    if hf_config.get("attn_logit_softcapping") is not None:
        raise ValueError(f"{hf_config.source}: attn_logit_softcapping is not supported for Gemma 3; supported: null")
    settings = hf_config.with_defaults_for_absent_keys(**DEFAULT_SETTINGS)
    positions = settings.get_positive_int("max_position_embeddings")
    return parse_common_gemma_config(
        settings, Gemma3Config,
        sliding_windows=read_alternating_windows(settings, settings.get_positive_int("sliding_window_pattern")),
        attention_scale=read_attention_scale(settings), logit_softcap=read_softcap(settings, "final_logit_softcapping"),
        max_positions=positions, rotary=read_rotary_config(settings, positions),
        local_rotary=read_local_rotary_config(settings, positions))


def read_local_rotary_config(hf_config: JsonConfig, max_positions: int) -> RotaryConfig:
    """Return the rotary embedding of layers with a window. Rope scaling in older files does not apply to them."""
    rope_parameters = (hf_config.get("rope_parameters") or {}).get("sliding_attention") or {}
    theta = hf_config.get_positive_number("rope_local_base_freq")
    return read_rotary_config(JsonConfig({"rope_parameters": rope_parameters, "rope_theta": theta}, hf_config.source),
                              max_positions)


def parse_multimodal_text_config(hf_config: JsonConfig) -> Gemma3Config:
    text = hf_config.get("text_config")
    if not isinstance(text, dict):
        raise ValueError(f"{hf_config.source}: text_config must be an object, got {text}")
    top_level = {name: hf_config.get(name) for name in TOP_LEVEL_SETTINGS if hf_config.get(name) is not None}
    config = parse_gemma3_config(hf_config.make_subconfig(text | top_level, "text_config"))
    if not config.tie_word_embeddings:
        raise ValueError(f"{hf_config.source}: tie_word_embeddings false is not supported for {config.architecture}; "
                         f"supported: true")
    return config


def read_layer(source: ModelReader[Gemma3Config], layer: int) -> Gemma3Layer:
    norm = Fp32WeightRMSNorm(add_one_to_weight(read_qk_norm_weights(source, layer)), source.config.norm_epsilon)
    return Gemma3Layer(source, layer, read_attention(source, layer, qk_norm=norm))


def read_gemma3(source: ModelReader[Gemma3Config]) -> Decoder:
    tables = source.make_rotary_table(), source.make_rotary_table(source.config.local_rotary)
    return read_softcapped_decoder(
        source, read_layer, lambda positions: [table.select_positions(positions) for table in tables])


def read_multimodal_text_model(source: ModelReader[Gemma3Config]) -> Decoder:
    logger.info("only the text's part of this model is read: it is served without images")
    for prefix in VISION_PREFIXES:
        source.weights.ignore_prefix(prefix)
    source.weights.ignore_tensor(TIED_HEAD_NAME)
    held = (prefix for prefix in LANGUAGE_MODEL_PREFIXES if source.weights.has_tensor(f"{prefix}.embed_tokens.weight"))
    return read_gemma3(replace(source, prefix=next(held, LANGUAGE_MODEL_PREFIXES[0])))
