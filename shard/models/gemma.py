"""Gemma: Llama with norm weights stored minus one, a scaled embedding, and GELU instead of SiLU. Gemma 2 has norms
before and after attention and MLP, soft-capped scores and logits, and a sliding window in every other layer. Gemma 3
adds QK norm per head, and a separate rotary embedding for layers with a window. Of multimodal models only the language
model is read; images are not supported.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shard.attention.model_inputs import ModelInputs
from shard.json_config import JsonConfig
from shard.layers.embedding import LMHead
from shard.layers.rotary import RotaryConfig
from shard.models.config import (
    AnyConfig,
    ModelConfig,
    check_activation,
    parse_common_config,
    parse_rotary_config,
    parse_sliding_windows,
)
from shard.models.decoder import (
    Decoder,
    DecoderLayer,
    LayerInputs,
    ModelLoader,
    SelectPositions,
    TokenEmbedding,
    load_decoder,
)
from shard.models.decoder_layers import GatedMlp, PreNormLayer, SelfAttention, load_attention, load_pre_norm_layer
from shard.models.qwen import read_qk_norm_weights
from shard.ops.norm import Fp32WeightRMSNorm, ResidualStream

ACTIVATION = "gelu_pytorch_tanh"
GEMMA_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 8192}
GEMMA2_DEFAULTS = {"sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
                   "final_logit_softcapping": 30.0}
# config.json of multimodal models omits most settings
GEMMA3_DEFAULTS = {"vocab_size": 262208, "max_position_embeddings": 131072, "num_attention_heads": 8,
                   "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                   "sliding_window_pattern": 6, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
# of tensor names in multimodal models
LANGUAGE_MODEL_PREFIXES = ("language_model.model", "model.language_model", "model")
TOP_LEVEL_SETTINGS = ("architectures", "dtype", "torch_dtype", "tie_word_embeddings")
VISION_PREFIXES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
TIED_HEAD_NAME = "language_model.lm_head.weight"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScaledEmbedding:
    """Token embedding multiplied by a constant."""

    embedding: TokenEmbedding
    scale: float

    def __call__(self, inputs: ModelInputs) -> Tensor:
        """`[tokens, hidden]`"""
        return self.embedding(inputs).mul_(self.scale)


def parse_gemma_config(hf_config: JsonConfig) -> ModelConfig:
    """Return the config. `gelu` in the first files means its approximation by tanh."""
    check_activation(hf_config, ACTIVATION, "gelu")
    return parse_common_gemma_config(hf_config, ModelConfig)


def parse_common_gemma_config(hf_config: JsonConfig, config_class: type[AnyConfig], **overrides: Any) -> AnyConfig:
    """Return a `config_class` with the settings that all generations of Gemma share."""
    if hf_config.get_bool("use_bidirectional_attention"):
        raise ValueError(
            f"{hf_config.source}: use_bidirectional_attention is not supported; supported: attention to what "
            f"came before")
    return parse_common_config(hf_config.with_defaults_for_absent_keys(**GEMMA_DEFAULTS), config_class,
                               attention_bias=hf_config.get_bool("attention_bias"), **overrides)


def load_gemma_norm(source: ModelLoader[Any], name: str) -> Fp32WeightRMSNorm:
    return Fp32WeightRMSNorm(add_one_to_weight(source.read_norm_weight(name)), source.config.norm_epsilon)


def add_one_to_weight(weight: Tensor) -> Tensor:
    return weight.float() + 1


def with_scaled_embedding(decoder: Decoder, dtype: torch.dtype) -> Decoder:
    """Scale the embedding by the square root of the hidden size, rounded to the embedding's dtype."""
    scale = float(torch.tensor(decoder.config.hidden_size ** 0.5, dtype=dtype))
    return replace(decoder, embedding=ScaledEmbedding(decoder.embedding, scale))


def load_gemma_layer(source: ModelLoader[ModelConfig], layer: int) -> PreNormLayer:
    return load_pre_norm_layer(source, layer, load_attention(source, layer),
                               GatedMlp(source, layer, activation=ACTIVATION), load_gemma_norm)


def load_gemma(source: ModelLoader[ModelConfig]) -> Decoder:
    return with_scaled_embedding(load_decoder(source, load_gemma_layer, load_gemma_norm), source.weights.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Gemma 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(ModelConfig):
    logit_softcap: float = 0.0  # soft limit of the logits; 0: none


class Gemma2Layer:
    """Decoder layer with norms before and after attention and MLP."""

    def __init__(self, source: ModelLoader[Any], layer: int, attention: SelfAttention) -> None:
        name, mlp = f"{source.prefix}.layers.{layer}", GatedMlp(source, layer, activation=ACTIVATION)
        self._attention, self._mlp = attention, mlp
        self._pre_attention_norm = load_gemma_norm(source, f"{name}.input_layernorm")
        self._post_attention_norm = load_gemma_norm(source, f"{name}.post_attention_layernorm")
        self._pre_mlp_norm = load_gemma_norm(source, f"{name}.pre_feedforward_layernorm")
        self._post_mlp_norm = load_gemma_norm(source, f"{name}.post_feedforward_layernorm")
        self.linears = attention.linears + mlp.linears

    def __call__(self, x: ResidualStream, context: LayerInputs) -> None:
        x.add_deferred(self._post_attention_norm(
            self._attention(x.apply_pending_and_norm(self._pre_attention_norm), context)))
        x.add_deferred(self._post_mlp_norm(self._mlp(x.apply_pending_and_norm(self._pre_mlp_norm))))


def parse_gemma2_config(hf_config: JsonConfig) -> Gemma2Config:
    check_activation(hf_config, ACTIVATION)
    settings = hf_config.with_defaults_for_absent_keys(**GEMMA2_DEFAULTS)
    return parse_common_gemma_config(settings, Gemma2Config, sliding_windows=parse_alternating_windows(settings, 2),
                                     attention_scale=parse_attention_scale(settings),
                                     attention_softcap=parse_softcap(settings, "attn_logit_softcapping"),
                                     logit_softcap=parse_softcap(settings, "final_logit_softcapping"))


def parse_softcap(hf_config: JsonConfig, name: str) -> float:
    return 0.0 if hf_config.get(name) is None else hf_config.get_positive_number(name)


def parse_attention_scale(hf_config: JsonConfig) -> float:
    return 1 / math.sqrt(hf_config.get_positive_number("query_pre_attn_scalar"))


def parse_alternating_windows(hf_config: JsonConfig, period: int) -> tuple[int, ...]:
    """Return the window sizes by layer: as in `layer_types`, or a window in all layers but the last of each period."""
    num_layers = hf_config.get_positive_int("num_hidden_layers")
    kinds = hf_config.get("layer_types") or [
        "full_attention" if layer % period == period - 1 else "sliding_attention" for layer in range(num_layers)]
    size = hf_config.get_positive_int("sliding_window") if "sliding_attention" in kinds else None
    return parse_sliding_windows(JsonConfig({"layer_types": kinds, "sliding_window": size}, hf_config.source),
                                 num_layers, enabled_by_default=True)


def with_logit_softcap(head: LMHead, softcap: float) -> LMHead:
    """Return the head with logits soft-capped at `softcap`; 0: unchanged."""
    return head.with_logits_transform(lambda logits: logits.div_(softcap).tanh_().mul_(softcap)) if softcap else head


def load_softcapped_decoder(source: ModelLoader[Any], load_layer: Callable[[ModelLoader[Any], int], DecoderLayer],
                            select_positions: SelectPositions | None = None) -> Decoder:
    """Load a decoder with a scaled embedding and soft-capped logits."""
    decoder = with_scaled_embedding(
        load_decoder(source, load_layer, load_gemma_norm, select_positions=select_positions), source.weights.dtype)
    return replace(decoder, head=with_logit_softcap(decoder.head, source.config.logit_softcap))


def load_gemma2(source: ModelLoader[Gemma2Config]) -> Decoder:
    return load_softcapped_decoder(
        source, lambda source, layer: Gemma2Layer(source, layer, load_attention(source, layer)))


# ---------------------------------------------------------------------------------------------------------------------
# Gemma 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    local_rotary: RotaryConfig  # of layers with a window


class Gemma3Layer(Gemma2Layer):
    """Gemma 2's layer that picks the rotary embedding of its kind of attention."""

    def __init__(self, source: ModelLoader[Gemma3Config], layer: int, attention: SelfAttention) -> None:
        super().__init__(source, layer, attention)
        windows = source.config.sliding_windows
        self._rotary_index = int(bool(windows and windows[layer]))  # 0: global attention, 1: with a window

    def __call__(self, x: ResidualStream, context: LayerInputs) -> None:
        super().__call__(x, context._replace(rotary=context.rotary[self._rotary_index]))


def parse_gemma3_config(hf_config: JsonConfig) -> Gemma3Config:
    check_activation(hf_config, ACTIVATION)
    if hf_config.get("attn_logit_softcapping") is not None:
        raise ValueError(f"{hf_config.source}: attn_logit_softcapping is not supported for Gemma 3; supported: null")
    settings = hf_config.with_defaults_for_absent_keys(**GEMMA3_DEFAULTS)
    positions = settings.get_positive_int("max_position_embeddings")
    # of layers with a window, to which rope scaling in older files does not apply
    local_rope = {"rope_parameters": (settings.get("rope_parameters") or {}).get("sliding_attention") or {},
                  "rope_theta": settings.get_positive_number("rope_local_base_freq")}
    return parse_common_gemma_config(
        settings, Gemma3Config,
        sliding_windows=parse_alternating_windows(settings, settings.get_positive_int("sliding_window_pattern")),
        attention_scale=parse_attention_scale(settings),
        logit_softcap=parse_softcap(settings, "final_logit_softcapping"), max_positions=positions,
        rotary=parse_rotary_config(settings, positions),
        local_rotary=parse_rotary_config(JsonConfig(local_rope, settings.source), positions))


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


def load_gemma3_layer(source: ModelLoader[Gemma3Config], layer: int) -> Gemma3Layer:
    norm = Fp32WeightRMSNorm(add_one_to_weight(read_qk_norm_weights(source, layer)), source.config.norm_epsilon)
    return Gemma3Layer(source, layer, load_attention(source, layer, qk_norm=norm))


def load_gemma3(source: ModelLoader[Gemma3Config]) -> Decoder:
    tables = source.make_rotary_table(), source.make_rotary_table(source.config.local_rotary)
    return load_softcapped_decoder(
        source, load_gemma3_layer, lambda positions: [table.select_positions(positions) for table in tables])


def load_multimodal_text_model(source: ModelLoader[Gemma3Config]) -> Decoder:
    logger.info("only the text's part of this model is read: it is served without images")
    for prefix in VISION_PREFIXES:
        source.weights.ignore_prefix(prefix)
    source.weights.ignore_tensor(TIED_HEAD_NAME)
    held = (prefix for prefix in LANGUAGE_MODEL_PREFIXES if source.weights.has_tensor(f"{prefix}.embed_tokens.weight"))
    return load_gemma3(replace(source, prefix=next(held, LANGUAGE_MODEL_PREFIXES[0])))
