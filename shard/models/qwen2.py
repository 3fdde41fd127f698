"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from shard.json_config import JsonConfig
from shard.models.common_config import check_activation, parse_common_config, read_sliding_windows
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, ModelReader, read_decoder
from shard.models.llama import GatedMlp, LlamaLayer, SelfAttention


def parse_qwen2_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    config: ModelConfig = parse_common_config(hf_config, sliding_windows=read_qwen_windows(hf_config))
    return config


def read_qwen_windows(hf_config: JsonConfig) -> tuple[int, ...]:
    """Return the window sizes by layer. Older files give the first layer with a window, if windows are used at all."""
    num_layers = hf_config.get_positive_int("num_hidden_layers")
    if not hf_config.get_bool("use_sliding_window", default=False) or hf_config.get("layer_types"):
        return read_sliding_windows(hf_config, num_layers, enabled_by_default=False)
    first, size = hf_config.get("max_window_layers"), hf_config.get("sliding_window") or 0
    return tuple(size if layer >= (28 if first is None else first) else 0 for layer in range(num_layers))


def read_layer(source: ModelReader[ModelConfig], layer: int) -> LlamaLayer:
    return LlamaLayer(source, layer, SelfAttention(source, layer, qkv_bias=True, output_bias=False),
                      GatedMlp(source, layer, bias=False))


def read_qwen2(source: ModelReader[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer)
