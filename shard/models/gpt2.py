"""GPT-2: learned positions, and weights that are stored transposed, as [in, out]."""

from dataclasses import dataclass

from shard.json_config import Given
from shard.layers.embedding import PlacedEmbedding
from shard.layers.parallel_linear import Part, row_linear
from shard.models.decoder import Decoder, Layer, Source, Unturned, read_ends, read_layers
from shard.models.gpt import FusedAttention, GptConfig, Mlp, SequentialLayer, layer_norm, read_gelu, share_evenly
from shard.models.hf_config import describe
from shard.models.llama import widened

PREFIX = "transformer."  # prefix of all tensor names but the head's, except in the oldest files


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Config(GptConfig):
    attenuated: bool  # whether scores are divided by the layer's number, counted from 1


def describe_gpt2(given: Given) -> Gpt2Config:
    if given.flag("add_cross_attention", default=False):
        raise ValueError(f"{given.source}: add_cross_attention true is not supported; supported: decoders without an "
                         f"encoder")
    hidden_size, num_heads = given.count("n_embd"), given.count("n_head")
    config: Gpt2Config = describe(
        given, Gpt2Config, hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_heads,
        num_layers=given.count("n_layer"), head_dim=share_evenly(given, hidden_size, num_heads),
        intermediate_size=given.count("n_inner", 4 * hidden_size), max_positions=given.count("n_positions", 1024),
        rotary=None, norm_epsilon=given.number("layer_norm_epsilon", 1e-5),
        tied=given.flag("tie_word_embeddings", default=True), attention_bias=True, mlp_bias=True,
        scale=None if given.flag("scale_attn_weights", default=True) else 1.0,
        attenuated=given.flag("scale_attn_by_inverse_layer_idx", default=False),
        approximate=read_gelu(given, "activation_function", "gelu_new"))
    return config


def read_attention(source: Source[Gpt2Config], layer: int, name: str) -> FusedAttention:
    config, hidden = source.config, source.config.hidden_size
    mine = widened(source.heads, config.head_dim)
    for buffer in ("bias", "masked_bias"):  # older files have them
        source.weights.ignore(f"{name}.{buffer}")
    qkv = [Part(f"{name}.c_attn", (3 * hidden, hidden), range(first + mine.start, first + mine.stop), bias=True,
                turned=True) for first in (0, hidden, 2 * hidden)]
    output = row_linear(source.weights, source.group, f"{name}.c_proj", (hidden, hidden), mine, bias=True, turned=True)
    return FusedAttention(source, layer, qkv, output, 1 / (layer + 1) if config.attenuated else 1.0)


def read_layer(source: Source[Gpt2Config], layer: int) -> Layer:
    name = f"{prefix(source)}h.{layer}"
    return SequentialLayer(
        layer_norm(source, f"{name}.ln_1"), read_attention(source, layer, f"{name}.attn"),
        layer_norm(source, f"{name}.ln_2"),
        Mlp(source, f"{name}.mlp.c_fc", f"{name}.mlp.c_proj", bias=True, turned=True))


def prefix(source: Source[Gpt2Config]) -> str:
    return PREFIX if source.weights.holds(f"{PREFIX}wte.weight") else ""


def read_gpt2(source: Source[Gpt2Config]) -> Decoder:
    config, before = source.config, prefix(source)
    embedding, head = read_ends(source, f"{before}wte.weight", "lm_head.weight")
    places = source.weights.whole(f"{before}wpe.weight", (config.max_positions, config.hidden_size))
    return Decoder(config, len(source.kv_heads), PlacedEmbedding(embedding, places), Unturned(),
                   read_layers(source, read_layer), layer_norm(source, f"{before}ln_f"), head)
