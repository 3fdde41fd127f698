"""GPT-NeoX and Pythia: one QKV tensor grouped by head, partial rotary embedding, and by default parallel attention and
MLP."""

from shard.json_config import JsonConfig
from shard.layers.parallel_linear import read_row_parallel_linear
from shard.models.common_config import parse_common_config
from shard.models.decoder import Decoder, DecoderLayer, ModelReader, read_embedding_and_head, read_layers
from shard.models.gpt_layers import (
    FusedQkvAttention,
    GeluMlp,
    GptConfig,
    ParallelResidualLayer,
    SequentialDecoderLayer,
    compute_head_dim,
    list_grouped_qkv_rows,
    read_gelu_approximation,
    read_layer_norm,
)
from shard.models.llama import compute_head_rows
from shard.models.rope_config import read_rotary_config

HEAD_NAMES = ("lm_head.weight", "embed_out.weight")  # the newer and the older name


def parse_gpt_neox_config(hf_config: JsonConfig) -> GptConfig:
    num_heads, positions = (hf_config.get_positive_int("num_attention_heads"),
                            hf_config.get_positive_int("max_position_embeddings", 2048))
    rope_settings = hf_config.with_defaults(  # names in older files
        rope_theta=hf_config.get_positive_number("rotary_emb_base", 10000.0),
        partial_rotary_factor=hf_config.get_positive_number("rotary_pct", 0.25))
    head_dim = compute_head_dim(hf_config, hf_config.get_positive_int("hidden_size"), num_heads)
    rotary = read_rotary_config(rope_settings, positions)
    if rotary.rotated_fraction > 1 or int(rotary.rotated_fraction * head_dim) % 2:
        raise ValueError(f"{hf_config.source}: rotary_pct {rotary.rotated_fraction} is "
                         f"{int(rotary.rotated_fraction * head_dim)} of a head's " f"{head_dim} values, which must be "
                         f"an even number of at most {head_dim}")
    config: GptConfig = parse_common_config(
        hf_config, GptConfig, num_kv_heads=num_heads, rotary=rotary, head_dim=head_dim,
        norm_epsilon=hf_config.get_positive_number("layer_norm_eps", 1e-5),
        attention_bias=hf_config.get_bool("attention_bias", default=True),
        mlp_bias=True, gelu_approximate=read_gelu_approximation(hf_config, "hidden_act", "gelu"),
        parallel_residual=hf_config.get_bool("use_parallel_residual", default=True))
    return config


def read_attention(source: ModelReader[GptConfig], layer: int, name: str) -> FusedQkvAttention:
    config, bias = source.config, source.config.attention_bias
    for buffer in ("bias", "masked_bias", "rotary_emb.inv_freq"):  # older files have them
        source.weights.ignore_tensor(f"{name}.{buffer}")
    output = read_row_parallel_linear(source.weights, source.group, f"{name}.dense",
                                      (config.hidden_size, config.hidden_size),
                                      compute_head_rows(source.head_range, config.head_dim), bias=bias)
    return FusedQkvAttention(source, layer, list_grouped_qkv_rows(source, f"{name}.query_key_value", bias=bias), output)


def read_layer(source: ModelReader[GptConfig], layer: int) -> DecoderLayer:
    name = f"gpt_neox.layers.{layer}"
    attention = read_attention(source, layer, f"{name}.attention")
    mlp = GeluMlp(source, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h", bias=source.config.mlp_bias)
    before_attention, before_mlp = (read_layer_norm(source, f"{name}.{norm}")
                                    for norm in ("input_layernorm", "post_attention_layernorm"))
    if source.config.parallel_residual:
        return ParallelResidualLayer(source.group, before_attention, attention, before_mlp, mlp)
    return SequentialDecoderLayer(before_attention, attention, before_mlp, mlp)


def read_gpt_neox(source: ModelReader[GptConfig]) -> Decoder:
    newer, older = HEAD_NAMES
    embedding, head = read_embedding_and_head(source, "gpt_neox.embed_in.weight",
                                              newer if source.weights.has_tensor(newer) else older)
    return Decoder(source.config, len(source.kv_head_range), embedding, source.make_rotary_table(),
                   read_layers(source, read_layer), read_layer_norm(source, "gpt_neox.final_layer_norm"), head)
