"""GPT-2: learned positions, and weights that are stored transposed, as [in, out]."""

from dataclasses import dataclass, replace

from shard.json_config import JsonConfig
from shard.layers.embedding import PositionedEmbedding
from shard.layers.parallel_linear import LinearRows, load_row_parallel_linear
from shard.layers.rotary import NoRotaryEmbedding
from shard.models.config import parse_common_config
from shard.models.decoder import Decoder, DecoderNames, ModelLoader, load_decoder
from shard.models.decoder_layers import PreNormLayer, SelfAttention, compute_head_rows
from shard.models.gpt_layers import GeluMlp, GptConfig, compute_head_dim, load_layer_norm, parse_gelu_approximation


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Config(GptConfig):
    scale_by_inverse_layer: bool  # whether scores are divided by the layer's number, counted from 1


def parse_gpt2_config(hf_config: JsonConfig) -> Gpt2Config:
    if hf_config.get_bool("add_cross_attention"):
        raise ValueError(
            f"{hf_config.source}: add_cross_attention true is not supported; supported: decoders without an "
            f"encoder")
    hidden_size, num_heads = hf_config.get_positive_int("n_embd"), hf_config.get_positive_int("n_head")
    return parse_common_config(
        hf_config, Gpt2Config, hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_heads,
        num_layers=hf_config.get_positive_int("n_layer"), head_dim=compute_head_dim(hf_config, hidden_size, num_heads),
        intermediate_size=hf_config.get_positive_int("n_inner", 4 * hidden_size),
        max_positions=hf_config.get_positive_int("n_positions", 1024),
        rotary=None, norm_epsilon=hf_config.get_positive_number("layer_norm_epsilon", 1e-5),
        tie_word_embeddings=hf_config.get_bool("tie_word_embeddings", default=True), attention_bias=True, mlp_bias=True,
        attention_scale=None if hf_config.get_bool("scale_attn_weights", default=True) else 1.0,
        scale_by_inverse_layer=hf_config.get_bool("scale_attn_by_inverse_layer_idx"),
        gelu_approximate=parse_gelu_approximation(hf_config, "activation_function", "gelu_new"))


def load_attention(source: ModelLoader[Gpt2Config], layer: int, name: str) -> SelfAttention:
    config, hidden = source.config, source.config.hidden_size
    head_rows = compute_head_rows(source.head_range, config.head_dim)
    for buffer in ("bias", "masked_bias"):  # older files have them
        source.weights.ignore_tensor(f"{name}.{buffer}")
    qkv = [LinearRows(f"{name}.c_attn", (3 * hidden, hidden), range(first + head_rows.start, first + head_rows.stop),
                      has_bias=True, transposed=True) for first in (0, hidden, 2 * hidden)]
    output = load_row_parallel_linear(source.weights, source.group, f"{name}.c_proj", (hidden, hidden), head_rows,
                                      bias=True, transposed=True)
    return SelfAttention(source, layer, qkv, output,
                         query_factor=1 / (layer + 1) if config.scale_by_inverse_layer else 1.0)


def load_layer(source: ModelLoader[Gpt2Config], layer: int) -> PreNormLayer:
    name = f"{source.prefix}.h.{layer}"
    return PreNormLayer(load_layer_norm(source, f"{name}.ln_1"), load_attention(source, layer, f"{name}.attn"),
                        load_layer_norm(source, f"{name}.ln_2"),
                        GeluMlp(source, f"{name}.mlp.c_fc", f"{name}.mlp.c_proj", transposed=True))


def load_gpt2(source: ModelLoader[Gpt2Config]) -> Decoder:
    """Load the model. The oldest files lack the prefix of tensor names."""
    decoder = load_decoder(replace(source, prefix="transformer"), load_layer, load_layer_norm,
                           names=DecoderNames("wte", "ln_f"), select_positions=lambda _: NoRotaryEmbedding())
    position_weight = source.weights.read_tensor("transformer.wpe.weight",
                                                 (source.config.max_positions, source.config.hidden_size))
    return replace(decoder, embedding=PositionedEmbedding(decoder.embedding, position_weight))
