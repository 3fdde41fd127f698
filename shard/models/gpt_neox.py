"""GPT-NeoX and Pythia: one QKV tensor grouped by head, partial rotary embedding, and by default parallel attention and
MLP."""

from shard.json_config import Given
from shard.layers.parallel_linear import row_linear
from shard.models.decoder import Decoder, Layer, Source, read_ends, read_layers
from shard.models.gpt import (
    FusedAttention,
    GptConfig,
    Mlp,
    ParallelLayer,
    SequentialLayer,
    grouped_parts,
    layer_norm,
    read_gelu,
    share_evenly,
)
from shard.models.hf_config import describe
from shard.models.llama import widened
from shard.models.rope_config import read_rotary

HEADS = ("lm_head.weight", "embed_out.weight")  # the newer and the older name


def describe_gpt_neox(given: Given) -> GptConfig:
    num_heads, positions = given.count("num_attention_heads"), given.count("max_position_embeddings", 2048)
    turning = given.with_defaults(  # names in older files
        rope_theta=given.number("rotary_emb_base", 10000.0), partial_rotary_factor=given.number("rotary_pct", 0.25))
    head_dim = share_evenly(given, given.count("hidden_size"), num_heads)
    rotary = read_rotary(turning, positions)
    if rotary.share > 1 or int(rotary.share * head_dim) % 2:
        raise ValueError(f"{given.source}: rotary_pct {rotary.share} is {int(rotary.share * head_dim)} of a head's "
                         f"{head_dim} values, which must be an even number of at most {head_dim}")
    config: GptConfig = describe(
        given, GptConfig, num_kv_heads=num_heads, rotary=rotary, head_dim=head_dim,
        norm_epsilon=given.number("layer_norm_eps", 1e-5), attention_bias=given.flag("attention_bias", default=True),
        mlp_bias=True, approximate=read_gelu(given, "hidden_act", "gelu"),
        parallel=given.flag("use_parallel_residual", default=True))
    return config


def read_attention(source: Source[GptConfig], layer: int, name: str) -> FusedAttention:
    config, bias = source.config, source.config.attention_bias
    for buffer in ("bias", "masked_bias", "rotary_emb.inv_freq"):  # older files have them
        source.weights.ignore(f"{name}.{buffer}")
    output = row_linear(source.weights, source.group, f"{name}.dense", (config.hidden_size, config.hidden_size),
                        widened(source.heads, config.head_dim), bias=bias)
    return FusedAttention(source, layer, grouped_parts(source, f"{name}.query_key_value", bias=bias), output)


def read_layer(source: Source[GptConfig], layer: int) -> Layer:
    name = f"gpt_neox.layers.{layer}"
    attention = read_attention(source, layer, f"{name}.attention")
    mlp = Mlp(source, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h", bias=source.config.mlp_bias)
    before_attention, before_mlp = (layer_norm(source, f"{name}.{norm}")
                                    for norm in ("input_layernorm", "post_attention_layernorm"))
    if source.config.parallel:
        return ParallelLayer(source.group, before_attention, attention, before_mlp, mlp)
    return SequentialLayer(before_attention, attention, before_mlp, mlp)


def read_gpt_neox(source: Source[GptConfig]) -> Decoder:
    newer, older = HEADS
    embedding, head = read_ends(source, "gpt_neox.embed_in.weight", newer if source.weights.holds(newer) else older)
    return Decoder(source.config, len(source.kv_heads), embedding, source.rotary_table(),
                   read_layers(source, read_layer), layer_norm(source, "gpt_neox.final_layer_norm"), head)
