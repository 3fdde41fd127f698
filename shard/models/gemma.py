"""Gemma: Llama with norm weights stored minus one, a scaled embedding, and GELU instead of SiLU.

Written as for one device: tensor parallelism is in the linears.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shard.attention.forward_inputs import ForwardInputs
from shard.json_config import JsonConfig
from shard.models.config import AnyConfig, ModelConfig, check_activation, parse_common_config
from shard.models.decoder import Decoder, ModelReader, TokenEmbedding, read_decoder
from shard.models.llama import GatedMlp, PreNormLayer, read_attention, read_pre_norm_layer
from shard.ops.norm import Fp32WeightRMSNorm

DEFAULT_SETTINGS = {"head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 8192}
ACTIVATION = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class ScaledEmbedding:
    """Token embedding multiplied by a constant."""

    embedding: TokenEmbedding
    scale: float

    def __call__(self, inputs: ForwardInputs) -> Tensor:
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
    return parse_common_config(hf_config.with_defaults_for_absent_keys(**DEFAULT_SETTINGS), config_class,
                               attention_bias=hf_config.get_bool("attention_bias"), **overrides)


def read_gemma_norm(source: ModelReader[Any], name: str) -> Fp32WeightRMSNorm:
    return Fp32WeightRMSNorm(add_one_to_weight(source.read_norm_weight(name)), source.config.norm_epsilon)


def add_one_to_weight(weight: Tensor) -> Tensor:
    return weight.float() + 1


def with_scaled_embedding(decoder: Decoder, dtype: torch.dtype) -> Decoder:
    """Scale the embedding by the square root of the hidden size, rounded to the embedding's dtype."""
    scale = float(torch.tensor(decoder.config.hidden_size ** 0.5, dtype=dtype))
    return replace(decoder, embedding=ScaledEmbedding(decoder.embedding, scale))


def read_layer(source: ModelReader[ModelConfig], layer: int) -> PreNormLayer:
    return read_pre_norm_layer(source, layer, read_attention(source, layer),
                               GatedMlp(source, layer, activation=ACTIVATION), read_gemma_norm)


def read_gemma(source: ModelReader[ModelConfig]) -> Decoder:
    return with_scaled_embedding(read_decoder(source, read_layer, read_gemma_norm), source.weights.dtype)
