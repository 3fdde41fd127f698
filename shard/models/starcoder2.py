"""StarCoder2: Llama's attention with layer norms and a sliding window, and an MLP with GELU."""

from shard.json_config import JsonConfig
from shard.models.config import parse_common_config, parse_sliding_windows
from shard.models.decoder import Decoder, ModelLoader, load_decoder
from shard.models.decoder_layers import PreNormLayer, load_attention, load_pre_norm_layer
from shard.models.gpt_layers import GeluMlp, GptConfig, load_layer_norm, parse_gelu_approximation


def parse_starcoder2_config(hf_config: JsonConfig) -> GptConfig:
    hf_config.require_supported("mlp_type", hf_config.get("mlp_type") or "default", ("default",))
    hf_config.require_supported("norm_type", hf_config.get("norm_type") or "layer_norm", ("layer_norm",))
    bias = hf_config.get_bool("use_bias", default=True)
    return parse_common_config(
        hf_config, GptConfig, norm_epsilon=hf_config.get_positive_number("norm_epsilon", 1e-5),
        tie_word_embeddings=hf_config.get_bool("tie_word_embeddings", default=True), attention_bias=bias, mlp_bias=bias,
        sliding_windows=parse_sliding_windows(hf_config, hf_config.get_positive_int("num_hidden_layers"),
                                              enabled_by_default=True),
        gelu_approximate=parse_gelu_approximation(hf_config, "hidden_act", "gelu_pytorch_tanh"))


def load_layer(source: ModelLoader[GptConfig], layer: int) -> PreNormLayer:
    mlp_name = f"{source.prefix}.layers.{layer}.mlp"
    return load_pre_norm_layer(source, layer, load_attention(source, layer),
                               GeluMlp(source, f"{mlp_name}.c_fc", f"{mlp_name}.c_proj"), load_layer_norm)


def load_starcoder2(source: ModelLoader[GptConfig]) -> Decoder:
    return load_decoder(source, load_layer, load_layer_norm)
