"""Falcon, in two designs: one KV head for all queries (7B), or one KV head per group of queries (11B, 40B, 180B) with
one or two norms before parallel attention and MLP. Models with ALiBi instead of rotary embedding are rejected."""

from dataclasses import dataclass, replace

from shard.json_config import JsonConfig
from shard.models.config import parse_common_config
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconConfig(GptConfig):
    num_layer_norms: int  # of a layer


def parse_falcon_config(hf_config: JsonConfig) -> FalconConfig:
    for name in ("alibi", "apply_residual_connection_post_layernorm"):
        if hf_config.get_bool(name):
            raise ValueError(f"{hf_config.source}: {name} true is not supported; supported: false")
    hf_config = hf_config.with_defaults(  # names in older files
        num_attention_heads=hf_config.get("n_head"), num_hidden_layers=hf_config.get("n_layer"),
        num_kv_heads=hf_config.get("n_head_kv"), hidden_size=hf_config.get("n_embed"))
    hidden_size, num_heads = (hf_config.get_positive_int("hidden_size"),
                              hf_config.get_positive_int("num_attention_heads"))
    bias, new_architecture = hf_config.get_bool("bias"), hf_config.get_bool("new_decoder_architecture")
    parallel = new_architecture or hf_config.get_bool("parallel_attn", default=True)
    if new_architecture:
        num_kv_heads = hf_config.get_positive_int("num_kv_heads", num_heads)
    else:  # one for all queries or one for each, regardless of `num_kv_heads`
        num_kv_heads = 1 if hf_config.get_bool("multi_query", default=True) else num_heads
    return parse_common_config(
        hf_config, FalconConfig, num_kv_heads=num_kv_heads,
        head_dim=compute_head_dim(hf_config, hidden_size, num_heads),
        intermediate_size=hf_config.get_positive_int("ffn_hidden_size", 4 * hidden_size),
        norm_epsilon=hf_config.get_positive_number("layer_norm_epsilon", 1e-5),
        tie_word_embeddings=hf_config.get_bool("tie_word_embeddings", default=True),
        attention_bias=bias, mlp_bias=bias, gelu_approximate=parse_gelu_approximation(hf_config, "activation", "gelu"),
        parallel_residual=parallel,
        num_layer_norms=count_layer_norms(hf_config, new_architecture=new_architecture) if parallel else 2)


def count_layer_norms(hf_config: JsonConfig, *, new_architecture: bool) -> int:
    """Return the number of norms before parallel attention and MLP."""
    max_norms = 2 if new_architecture else 1
    count = hf_config.get_positive_int("num_ln_in_parallel_attn", max_norms)
    if count > max_norms:
        raise ValueError(
            f"{hf_config.source}: num_ln_in_parallel_attn may be at most {max_norms} with new_decoder_architecture "
            f"{str(new_architecture).lower()}, got {count}")
    return count


def load_layer(source: ModelLoader[FalconConfig], layer: int) -> DecoderLayer:
    config, name = source.config, f"{source.prefix}.h.{layer}"
    attention = load_grouped_attention(source, layer, f"{name}.self_attention", "rotary_emb.inv_freq")
    mlp = GeluMlp(source, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
    if not config.parallel_residual:
        return PreNormLayer(load_layer_norm(source, f"{name}.input_layernorm"), attention,
                            load_layer_norm(source, f"{name}.post_attention_layernorm"), mlp)
    if config.num_layer_norms == 1:
        return ParallelResidualLayer(source.group, load_layer_norm(source, f"{name}.input_layernorm"), attention,
                                     None, mlp)
    return ParallelResidualLayer(source.group, load_layer_norm(source, f"{name}.ln_attn"), attention,
                                 load_layer_norm(source, f"{name}.ln_mlp"), mlp)


def load_falcon(source: ModelLoader[FalconConfig]) -> Decoder:
    return load_decoder(replace(source, prefix="transformer"), load_layer, load_layer_norm,
                        names=DecoderNames("word_embeddings", "ln_f"))
