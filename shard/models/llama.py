"""Llama: attention and a gated MLP, each after a norm."""

from shard.json_config import JsonConfig
from shard.models.config import ModelConfig, check_activation, parse_common_config, reject_sliding_windows
from shard.models.decoder import Decoder, ModelLoader, load_decoder
from shard.models.decoder_layers import GatedMlp, PreNormLayer, load_attention, load_pre_norm_layer


def parse_llama_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    reject_sliding_windows(hf_config)
    return parse_common_config(hf_config, ModelConfig, attention_bias=hf_config.get_bool("attention_bias"),
                               mlp_bias=hf_config.get_bool("mlp_bias"))


def load_layer(source: ModelLoader[ModelConfig], layer: int) -> PreNormLayer:
    return load_pre_norm_layer(source, layer, load_attention(source, layer), GatedMlp(source, layer))


def load_llama(source: ModelLoader[ModelConfig]) -> Decoder:
    return load_decoder(source, load_layer)
