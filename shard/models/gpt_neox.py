"""GPT-NeoX and Pythia: one QKV tensor grouped by head, partial rotary embedding, and by default parallel attention and
MLP."""

from dataclasses import replace

from shard.json_config import JsonConfig
from shard.models.config import parse_common_config, parse_rotary_config
from shard.models.decoder import Decoder, DecoderLayer, DecoderNames, ModelLoader, load_decoder
from shard.models.decoder_layers import PreNormLayer
from shard.models.gpt_layers import (
    GeluMlp,
    GptConfig,
    ParallelResidualLayer,
    compute_head_dim,
    load_grouped_attention,
    load_layer_norm,
    parse_gelu_approximation,
)

HEAD_NAMES = ("lm_head", "embed_out")  # the newer and the older name


def parse_gpt_neox_config(hf_config: JsonConfig) -> GptConfig:
    num_heads, positions = (hf_config.get_positive_int("num_attention_heads"),
                            hf_config.get_positive_int("max_position_embeddings", 2048))
    rope_settings = hf_config.with_defaults(  # names in older files
        rope_theta=hf_config.get_positive_number("rotary_emb_base", 10000.0),
        partial_rotary_factor=hf_config.get_positive_number("rotary_pct", 0.25))
    head_dim = compute_head_dim(hf_config, hf_config.get_positive_int("hidden_size"), num_heads)
    rotary = parse_rotary_config(rope_settings, positions)
    if rotary.rotated_fraction > 1 or int(rotary.rotated_fraction * head_dim) % 2:
        raise ValueError(f"{hf_config.source}: rotary_pct {rotary.rotated_fraction} is "
                         f"{int(rotary.rotated_fraction * head_dim)} of a head's " f"{head_dim} values, which must be "
                         f"an even number of at most {head_dim}")
    return parse_common_config(
        hf_config, GptConfig, num_kv_heads=num_heads, rotary=rotary, head_dim=head_dim,
        norm_epsilon=hf_config.get_positive_number("layer_norm_eps", 1e-5),
        attention_bias=hf_config.get_bool("attention_bias", default=True),
        mlp_bias=True, gelu_approximate=parse_gelu_approximation(hf_config, "hidden_act", "gelu"),
        parallel_residual=hf_config.get_bool("use_parallel_residual", default=True))


def load_layer(source: ModelLoader[GptConfig], layer: int) -> DecoderLayer:
    name = f"{source.prefix}.layers.{layer}"
    attention = load_grouped_attention(source, layer, f"{name}.attention", "bias", "masked_bias",
                                       "rotary_emb.inv_freq")
    mlp = GeluMlp(source, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
    before_attention, before_mlp = (load_layer_norm(source, f"{name}.{norm}")
                                    for norm in ("input_layernorm", "post_attention_layernorm"))
    if source.config.parallel_residual:
        return ParallelResidualLayer(source.group, before_attention, attention, before_mlp, mlp)
    return PreNormLayer(before_attention, attention, before_mlp, mlp)


def load_gpt_neox(source: ModelLoader[GptConfig]) -> Decoder:
    newer, older = HEAD_NAMES
    head = newer if source.weights.has_tensor(f"{newer}.weight") else older
    return load_decoder(replace(source, prefix="gpt_neox"), load_layer, load_layer_norm,
                        names=DecoderNames("embed_in", "final_layer_norm", head))
