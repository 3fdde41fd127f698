"""StarCoder2: Llama's attention with layer norms and a sliding window, and an MLP with GELU."""

from shard.json_config import Given
from shard.models.decoder import Decoder, Layer, Source, read_ends, read_layers
from shard.models.gpt import GptConfig, Mlp, SequentialLayer, layer_norm, read_gelu
from shard.models.hf_config import describe, read_windows
from shard.models.llama import SelfAttention


def describe_starcoder2(given: Given) -> GptConfig:
    given.one_of("mlp_type", given.get("mlp_type") or "default", ("default",))
    given.one_of("norm_type", given.get("norm_type") or "layer_norm", ("layer_norm",))
    bias = given.flag("use_bias", default=True)
    config: GptConfig = describe(
        given, GptConfig, norm_epsilon=given.number("norm_epsilon", 1e-5),
        tied=given.flag("tie_word_embeddings", default=True), attention_bias=bias, mlp_bias=bias,
        windows=read_windows(given, given.count("num_hidden_layers"), usual=True),
        approximate=read_gelu(given, "hidden_act", "gelu_pytorch_tanh"))
    return config


def read_layer(source: Source[GptConfig], layer: int) -> Layer:
    name, bias = f"model.layers.{layer}", source.config.attention_bias
    return SequentialLayer(
        layer_norm(source, f"{name}.input_layernorm"),
        SelfAttention(source, layer, qkv_bias=bias, output_bias=bias),
        layer_norm(source, f"{name}.post_attention_layernorm"),
        Mlp(source, f"{name}.mlp.c_fc", f"{name}.mlp.c_proj", bias=source.config.mlp_bias))


def read_starcoder2(source: Source[GptConfig]) -> Decoder:
    embedding, head = read_ends(source, "model.embed_tokens.weight", "lm_head.weight")
    return Decoder(source.config, len(source.kv_heads), embedding, source.rotary_table(),
                   read_layers(source, read_layer), layer_norm(source, "model.norm"), head)
