"""Llama, and the parts that other models share with it: attention and a gated MLP, each after a norm.

Written as for one device: tensor parallelism is in the linears.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.json_config import Given
from shard.layers.attention_input import HeadNorm, Turn
from shard.layers.parallel_linear import Part, column_linear, gated_linear, row_linear
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Product, ReadNorm, Source, read_decoder
from shard.models.hf_config import describe, refuse_activation
from shard.ops.residual import Residual


class SelfAttention:
    def __init__(self, source: Source[ModelConfig], layer: int, *, qkv_bias: bool, output_bias: bool,
                 head_norm: HeadNorm | None = None, parts: Sequence[Part] = ()) -> None:
        """`parts`: queries, keys and values, if the checkpoint has them in one tensor."""
        config, name, hidden = source.config, f"{source.prefix}.layers.{layer}.self_attn", source.config.hidden_size
        self._layer, self._head_norm = layer, head_norm
        self._head_dim = config.head_dim
        self._qkv = column_linear(source.weights, parts or qkv_parts(source, name, bias=qkv_bias))
        self._output = row_linear(
            source.weights, source.group, f"{name}.o_proj", (hidden, config.num_heads * config.head_dim),
            widened(source.heads, config.head_dim), bias=output_bias)
        source.weights.ignore(f"{name}.rotary_emb.inv_freq")  # older files have it, and it follows from the config

        self.products: list[Product] = [
            (self._qkv, hidden), (self._output, len(source.heads) * config.head_dim)]

    def __call__(self, x: Tensor, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        heads = self._qkv(x).view(len(x), -1, self._head_dim)  # [tokens, heads + 2 * kv heads, head_dim]
        queries = turn.enter(heads, self._head_norm, cache, self._layer, inputs.slots)
        mixed = attention.run(queries, cache, self._layer, inputs.plan)
        return self._output(mixed)  # [tokens, heads * head_dim] -> [tokens, hidden]


class Mlp:
    def __init__(self, source: Source[ModelConfig], layer: int, *, bias: bool, activation: str = "silu",
                 parts: Sequence[Part] = ()) -> None:
        """`parts`: gate and up, if the checkpoint has them in one tensor."""
        config, name = source.config, f"{source.prefix}.layers.{layer}.mlp"
        wide, narrow = config.intermediate_size, config.hidden_size
        gate, up = parts or (Part(f"{name}.{projection}", (wide, narrow), source.intermediate, bias)
                             for projection in ("gate_proj", "up_proj"))
        self._gated = gated_linear(source.weights, gate, up, activation)
        self._down = row_linear(source.weights, source.group, f"{name}.down_proj", (narrow, wide),
                                source.intermediate, bias=bias)
        self.products: list[Product] = [(self._gated.product, narrow), (self._down, len(source.intermediate))]

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gated(x))


class FeedForward(Protocol):
    """Feed-forward block of a layer: an MLP or a mixture of experts."""

    products: list[Product]

    def __call__(self, x: Tensor) -> Tensor: ...


class LlamaLayer:
    def __init__(self, source: Source[ModelConfig], layer: int, attention: SelfAttention, mlp: FeedForward,
                 read_norm: ReadNorm = Source.norm) -> None:
        name = f"{source.prefix}.layers.{layer}"
        self._before_attention = read_norm(source, f"{name}.input_layernorm")
        self._attention = attention
        self._before_mlp = read_norm(source, f"{name}.post_attention_layernorm")
        self._mlp = mlp
        self.products = attention.products + mlp.products

    def __call__(self, x: Residual, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        x.add(self._attention(x.normed(self._before_attention), turn, inputs, cache, attention))
        x.add(self._mlp(x.normed(self._before_mlp)))


def qkv_parts(source: Source[ModelConfig], name: str, *, bias: bool) -> list[Part]:
    """Return this rank's heads of separate weights for queries, keys and values."""
    config = source.config
    heads = ((source.heads, config.num_heads), *2 * [(source.kv_heads, config.num_kv_heads)])
    return [Part(f"{name}.{projection}", (number * config.head_dim, config.hidden_size),
                 widened(mine, config.head_dim), bias)
            for projection, (mine, number) in zip(("q_proj", "k_proj", "v_proj"), heads, strict=True)]


def widened(heads: range, head_dim: int) -> range:
    """Return the rows of a projection's weight that belong to these heads."""
    return range(heads.start * head_dim, heads.stop * head_dim)


def describe_llama(given: Given) -> ModelConfig:
    refuse_activation(given, "silu")
    refuse_windows(given)
    config: ModelConfig = describe(given, attention_bias=given.flag("attention_bias", default=False),
                                   mlp_bias=given.flag("mlp_bias", default=False))
    return config


def refuse_windows(given: Given) -> None:
    if set(given.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError(f"{given.source}: layer_types {sorted(set(given.get('layer_types')))} are not supported; "
                         f"supported: full_attention in every layer")


def read_layer(source: Source[ModelConfig], layer: int) -> LlamaLayer:
    bias = source.config.attention_bias
    return LlamaLayer(source, layer, SelfAttention(source, layer, qkv_bias=bias, output_bias=bias),
                      Mlp(source, layer, bias=source.config.mlp_bias))


def read_llama(source: Source[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer)
