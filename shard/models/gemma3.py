"""Gemma 3: Gemma 2 with QK norm per head, and a separate rotary embedding for layers with a sliding window.

Of multimodal models only the language model is read; images are not supported.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.json_config import Given
from shard.layers.attention_input import Turn
from shard.layers.rotary import RotaryTable
from shard.models.config import Rotary
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.gemma import ACTIVATION, describe_any, from_one, norm_from_one, scaled
from shard.models.gemma2 import Gemma2Config, Gemma2Layer, alternating, bound, capped, query_scale
from shard.models.hf_config import refuse_activation
from shard.models.llama import Mlp, SelfAttention
from shard.models.qwen3 import head_norm_weights
from shard.models.rope_config import read_rotary
from shard.ops.norm import WideRMSNorm
from shard.ops.residual import Residual

USUAL = {"vocab_size": 262208, "max_position_embeddings": 131072, "num_attention_heads": 8, "num_key_value_heads": 4,
         "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6, "rope_theta": 1_000_000.0,
         "rope_local_base_freq": 10_000.0}  # config.json of multimodal models omits most settings
PREFIXES = ("language_model.model", "model.language_model", "model")  # of tensor names in multimodal models
TOLD_BESIDE = ("architectures", "dtype", "torch_dtype", "tie_word_embeddings")
UNSEEN = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
TIED_HEAD = "language_model.lm_head.weight"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    local_rotary: Rotary  # of layers with a window


@dataclass(frozen=True, slots=True)
class TwoTables:
    everywhere: RotaryTable
    local: RotaryTable

    def at(self, positions: Tensor) -> tuple[Turn, Turn]:
        return self.everywhere.at(positions), self.local.at(positions)


class Gemma3Layer(Gemma2Layer):
    def __init__(self, source: Source[Gemma3Config], layer: int, attention: SelfAttention, mlp: Mlp) -> None:
        super().__init__(source, layer, attention, mlp)
        windows = source.config.windows
        self._kind = int(bool(windows and windows[layer]))  # index in the result of `TwoTables.at`

    def __call__(self, x: Residual, turn: Any, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        super().__call__(x, turn[self._kind], inputs, cache, attention)


def describe_gemma3(given: Given) -> Gemma3Config:
    refuse_activation(given, ACTIVATION)
    if given.get("attn_logit_softcapping") is not None:
        raise ValueError(f"{given.source}: attn_logit_softcapping is not supported for Gemma 3; supported: null")
    told = given.usually(**USUAL)
    positions = told.count("max_position_embeddings")
    config: Gemma3Config = describe_any(
        told, Gemma3Config, windows=alternating(told, told.count("sliding_window_pattern")), scale=query_scale(told),
        logit_softcap=bound(told, "final_logit_softcapping"), max_positions=positions,
        rotary=read_rotary(told, positions), local_rotary=read_local_rotary(told, positions))
    return config


def read_local_rotary(given: Given, positions: int) -> Rotary:
    """Return the rotary embedding of layers with a window. Rope scaling in older files does not apply to them."""
    told = (given.get("rope_parameters") or {}).get("sliding_attention") or {}
    theta = given.number("rope_local_base_freq")
    return read_rotary(Given({"rope_parameters": told, "rope_theta": theta}, given.source), positions)


def describe_text_part(given: Given) -> Gemma3Config:
    text = given.get("text_config")
    if not isinstance(text, dict):
        raise ValueError(f"{given.source}: text_config must be an object, got {text}")
    beside = {name: given.get(name) for name in TOLD_BESIDE if given.get(name) is not None}
    config = describe_gemma3(given.instead(text | beside, "text_config"))
    if not config.tied:
        raise ValueError(f"{given.source}: tie_word_embeddings false is not supported for {config.architecture}; "
                         f"supported: true")
    return config


def read_layer(source: Source[Gemma3Config], layer: int) -> Gemma3Layer:
    bias = source.config.attention_bias
    norm = WideRMSNorm(from_one(head_norm_weights(source, layer)), source.config.norm_epsilon)
    attention = SelfAttention(source, layer, qkv_bias=bias, output_bias=bias, head_norm=norm)
    return Gemma3Layer(source, layer, attention, Mlp(source, layer, bias=False, activation=ACTIVATION))


def read_gemma3(source: Source[Gemma3Config]) -> Decoder:
    tables = TwoTables(source.rotary_table(), source.table_of(source.config.local_rotary))
    decoder = scaled(read_decoder(source, read_layer, norm_from_one, tables), source.weights.dtype)
    return replace(decoder, head=capped(decoder.head, source.config.logit_softcap))


def read_text_part(source: Source[Gemma3Config]) -> Decoder:
    log.info("only the text's part of this model is read: it is served without images")
    for prefix in UNSEEN:
        source.weights.ignore_all(prefix)
    source.weights.ignore(TIED_HEAD)
    held = (prefix for prefix in PREFIXES if source.weights.holds(f"{prefix}.embed_tokens.weight"))
    return read_gemma3(replace(source, prefix=next(held, PREFIXES[0])))
