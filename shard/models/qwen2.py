"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from shard.json_config import Given
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.hf_config import describe, read_windows, refuse_activation
from shard.models.llama import LlamaLayer, Mlp, SelfAttention


def describe_qwen2(given: Given) -> ModelConfig:
    refuse_activation(given, "silu")
    config: ModelConfig = describe(given, windows=slides(given))
    return config


def slides(given: Given) -> tuple[int, ...]:
    """Return the window sizes by layer. Older files give the first layer with a window, if windows are used at all."""
    num_layers = given.count("num_hidden_layers")
    if not given.flag("use_sliding_window", default=False) or given.get("layer_types"):
        return read_windows(given, num_layers, usual=False)
    first, size = given.get("max_window_layers"), given.get("sliding_window") or 0
    return tuple(size if layer >= (28 if first is None else first) else 0 for layer in range(num_layers))


def read_layer(source: Source[ModelConfig], layer: int) -> LlamaLayer:
    return LlamaLayer(source, layer, SelfAttention(source, layer, qkv_bias=True, output_bias=False),
                      Mlp(source, layer, bias=False))


def read_qwen2(source: Source[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer)
