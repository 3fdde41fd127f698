"""StarCoder2: Llama's attention with layer norms and a sliding window, and an MLP with GELU."""

from shard.json_config import JsonConfig
from shard.models.common_config import parse_common_config, read_sliding_windows
from shard.models.decoder import Decoder, DecoderLayer, ModelReader, read_embedding_and_head, read_layers
from shard.models.gpt_layers import GeluMlp, GptConfig, SequentialDecoderLayer, read_gelu_approximation, read_layer_norm
from shard.models.llama import SelfAttention


def parse_starcoder2_config(hf_config: JsonConfig) -> GptConfig:
    hf_config.require_supported("mlp_type", hf_config.get("mlp_type") or "default", ("default",))
    hf_config.require_supported("norm_type", hf_config.get("norm_type") or "layer_norm", ("layer_norm",))
    bias = hf_config.get_bool("use_bias", default=True)
    config: GptConfig = parse_common_config(
        hf_config, GptConfig, norm_epsilon=hf_config.get_positive_number("norm_epsilon", 1e-5),
        tie_word_embeddings=hf_config.get_bool("tie_word_embeddings", default=True), attention_bias=bias, mlp_bias=bias,
        sliding_windows=read_sliding_windows(hf_config, hf_config.get_positive_int("num_hidden_layers"),
                                             enabled_by_default=True),
        gelu_approximate=read_gelu_approximation(hf_config, "hidden_act", "gelu_pytorch_tanh"))
    return config


def read_layer(source: ModelReader[GptConfig], layer: int) -> DecoderLayer:
    name, bias = f"model.layers.{layer}", source.config.attention_bias
    return SequentialDecoderLayer(
        read_layer_norm(source, f"{name}.input_layernorm"),
        SelfAttention(source, layer, qkv_bias=bias, output_bias=bias),
        read_layer_norm(source, f"{name}.post_attention_layernorm"),
        GeluMlp(source, f"{name}.mlp.c_fc", f"{name}.mlp.c_proj", bias=source.config.mlp_bias))


def read_starcoder2(source: ModelReader[GptConfig]) -> Decoder:
    embedding, head = read_embedding_and_head(source, "model.embed_tokens.weight", "lm_head.weight")
    return Decoder(source.config, len(source.kv_head_range), embedding, source.make_rotary_table(),
                   read_layers(source, read_layer), read_layer_norm(source, "model.norm"), head)
