"""Falcon, in two designs: one KV head for all queries (7B), or one KV head per group of queries (11B, 40B, 180B) with
one or two norms before parallel attention and MLP.

Models with ALiBi instead of rotary embedding are rejected.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconConfig(GptConfig):
    num_norms: int  # of a layer


def describe_falcon(given: Given) -> FalconConfig:
    for name in ("alibi", "apply_residual_connection_post_layernorm"):
        if given.flag(name, default=False):
            raise ValueError(f"{given.source}: {name} true is not supported; supported: false")
    given = given.with_defaults(  # names in older files
        num_attention_heads=given.get("n_head"), num_hidden_layers=given.get("n_layer"),
        num_kv_heads=given.get("n_head_kv"), hidden_size=given.get("n_embed"))
    hidden_size, num_heads = given.count("hidden_size"), given.count("num_attention_heads")
    bias, grouped = given.flag("bias", default=False), given.flag("new_decoder_architecture", default=False)
    parallel = grouped or given.flag("parallel_attn", default=True)
    config: FalconConfig = describe(
        given, FalconConfig, num_kv_heads=count_kv_heads(given, num_heads, grouped=grouped),
        head_dim=share_evenly(given, hidden_size, num_heads),
        intermediate_size=given.count("ffn_hidden_size", 4 * hidden_size),
        norm_epsilon=given.number("layer_norm_epsilon", 1e-5), tied=given.flag("tie_word_embeddings", default=True),
        attention_bias=bias, mlp_bias=bias, approximate=read_gelu(given, "activation", "gelu"), parallel=parallel,
        num_norms=count_norms(given, grouped=grouped) if parallel else 2)
    return config


def count_kv_heads(given: Given, num_heads: int, *, grouped: bool) -> int:
    """Return the number of KV heads. The older design has one for all queries or one for each, regardless of
    `num_kv_heads`."""
    if grouped:
        return given.count("num_kv_heads", num_heads)
    return 1 if given.flag("multi_query", default=True) else num_heads


def count_norms(given: Given, *, grouped: bool) -> int:
    """Return the number of norms before parallel attention and MLP."""
    most = 2 if grouped else 1
    count = given.count("num_ln_in_parallel_attn", most)
    if count > most:
        raise ValueError(f"{given.source}: num_ln_in_parallel_attn may be at most {most} with new_decoder_architecture "
                         f"{str(grouped).lower()}, got {count}")
    return count


def read_attention(source: Source[FalconConfig], layer: int, name: str) -> FusedAttention:
    config, bias = source.config, source.config.attention_bias
    source.weights.ignore(f"{name}.rotary_emb.inv_freq")  # older files have it
    output = row_linear(source.weights, source.group, f"{name}.dense", (config.hidden_size, config.hidden_size),
                        widened(source.heads, config.head_dim), bias=bias)
    return FusedAttention(source, layer, grouped_parts(source, f"{name}.query_key_value", bias=bias), output)


def read_layer(source: Source[FalconConfig], layer: int) -> Layer:
    config, name = source.config, f"transformer.h.{layer}"
    attention = read_attention(source, layer, f"{name}.self_attention")
    mlp = Mlp(source, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h", bias=config.mlp_bias)
    if not config.parallel:
        return SequentialLayer(layer_norm(source, f"{name}.input_layernorm"), attention,
                               layer_norm(source, f"{name}.post_attention_layernorm"), mlp)
    if config.num_norms == 1:
        return ParallelLayer(source.group, layer_norm(source, f"{name}.input_layernorm"), attention, None, mlp)
    return ParallelLayer(source.group, layer_norm(source, f"{name}.ln_attn"), attention,
                         layer_norm(source, f"{name}.ln_mlp"), mlp)


def read_falcon(source: Source[FalconConfig]) -> Decoder:
    embedding, head = read_ends(source, "transformer.word_embeddings.weight", "lm_head.weight")
    return Decoder(source.config, len(source.kv_heads), embedding, source.rotary_table(),
                   read_layers(source, read_layer), layer_norm(source, "transformer.ln_f"), head)
