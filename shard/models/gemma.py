"""Gemma: Llama with norm weights stored minus one, a scaled embedding, and GELU instead of SiLU.

Written as for one device: tensor parallelism is in the linears.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shard.attention.inputs import Inputs
from shard.json_config import Given
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Embeds, Source, read_decoder
from shard.models.hf_config import describe, refuse_activation
from shard.models.llama import LlamaLayer, Mlp, SelfAttention
from shard.ops.norm import WideRMSNorm

USUAL = {"head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 8192}
ACTIVATION = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class ScaledEmbedding:
    embedding: Embeds
    scale: float

    def __call__(self, inputs: Inputs) -> Tensor:
        """`[tokens, hidden]`"""
        return self.embedding(inputs).mul_(self.scale)


def describe_gemma(given: Given) -> ModelConfig:
    """Return the config. `gelu` in the first files means its approximation by tanh."""
    refuse_activation(given, ACTIVATION, "gelu")
    config: ModelConfig = describe_any(given)
    return config


def describe_any(given: Given, kind: type[ModelConfig] = ModelConfig, **differently: Any) -> Any:
    """Return a `kind` with the settings that all generations of Gemma share."""
    if given.flag("use_bidirectional_attention", default=False):
        raise ValueError(f"{given.source}: use_bidirectional_attention is not supported; supported: attention to what "
                         f"came before")
    bias = given.flag("attention_bias", default=False)
    return describe(given.usually(**USUAL), kind, attention_bias=bias, **differently)


def norm_from_one(source: Source[Any], name: str) -> WideRMSNorm:
    return WideRMSNorm(from_one(source.norm_weight(name)), source.config.norm_epsilon)


def from_one(weight: Tensor) -> Tensor:
    return weight.float() + 1


def scaled(decoder: Decoder, dtype: torch.dtype) -> Decoder:
    """Scale the embedding by the square root of the hidden size, rounded to the embedding's dtype."""
    root = float(torch.tensor(decoder.config.hidden_size ** 0.5, dtype=dtype))
    return replace(decoder, embedding=ScaledEmbedding(decoder.embedding, root))


def read_layer(source: Source[ModelConfig], layer: int) -> LlamaLayer:
    bias = source.config.attention_bias
    return LlamaLayer(source, layer, SelfAttention(source, layer, qkv_bias=bias, output_bias=bias),
                      Mlp(source, layer, bias=False, activation=ACTIVATION), norm_from_one)


def read_gemma(source: Source[ModelConfig]) -> Decoder:
    return scaled(read_decoder(source, read_layer, norm_from_one), source.weights.dtype)
