"""Llama, and the parts that other models share with it: attention and a gated MLP, each after a norm.

Written as for one device: tensor parallelism is in the linears.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.forward_inputs import ForwardInputs
from shard.attention.kv_cache import KVCache
from shard.json_config import JsonConfig
from shard.layers.parallel_linear import (
    LinearRows,
    read_column_parallel_linear,
    read_gated_linear,
    read_row_parallel_linear,
)
from shard.layers.rotary import QKNorm, RotaryEmbedding
from shard.models.common_config import check_activation, parse_common_config
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, ModelReader, NormReader, SizedLinear, read_decoder
from shard.ops.residual import ResidualStream


class SelfAttention:
    """Self-attention with rotary embedding and an optional QK norm."""

    def __init__(self, source: ModelReader[ModelConfig], layer: int, *, qkv_bias: bool, output_bias: bool,
                 qk_norm: QKNorm | None = None, qkv_rows: Sequence[LinearRows] = ()) -> None:
        """`qkv_rows`: queries, keys and values, if the checkpoint has them in one tensor."""
        config, name, hidden = source.config, f"{source.prefix}.layers.{layer}.self_attn", source.config.hidden_size
        self._layer, self._qk_norm = layer, qk_norm
        self._head_dim = config.head_dim
        self._qkv = read_column_parallel_linear(source.weights, qkv_rows or list_qkv_rows(source, name, bias=qkv_bias))
        self._output_linear = read_row_parallel_linear(
            source.weights, source.group, f"{name}.o_proj", (hidden, config.num_heads * config.head_dim),
            compute_head_rows(source.head_range, config.head_dim), bias=output_bias)
        # older files have it, and it follows from the config
        source.weights.ignore_tensor(f"{name}.rotary_emb.inv_freq")

        self.linears: list[SizedLinear] = [
            (self._qkv, hidden), (self._output_linear, len(source.head_range) * config.head_dim)]

    def __call__(self, x: Tensor, rotary: RotaryEmbedding, inputs: ForwardInputs, cache: KVCache,
                 attention: AttentionBackend) -> Tensor:
        qkv_heads = self._qkv(x).view(len(x), -1, self._head_dim)  # [tokens, heads + 2 * kv heads, head_dim]
        queries = rotary.rotate_and_cache(qkv_heads, self._qk_norm, cache, self._layer, inputs.slots)
        mixed = attention.run(queries, cache, self._layer, inputs.attention_plan)
        return self._output_linear(mixed)  # [tokens, heads * head_dim] -> [tokens, hidden]


class GatedMlp:
    """MLP with a gate, up and down projection (SwiGLU or GeGLU)."""

    def __init__(self, source: ModelReader[ModelConfig], layer: int, *, bias: bool, activation: str = "silu",
                 gate_up_rows: Sequence[LinearRows] = ()) -> None:
        """`gate_up_rows`: gate and up, if the checkpoint has them in one tensor."""
        config, name = source.config, f"{source.prefix}.layers.{layer}.mlp"
        wide, narrow = config.intermediate_size, config.hidden_size
        gate, up = gate_up_rows or (LinearRows(f"{name}.{projection}", (wide, narrow), source.intermediate_range, bias)
                                    for projection in ("gate_proj", "up_proj"))
        self._gate_up = read_gated_linear(source.weights, gate, up, activation)
        self._down = read_row_parallel_linear(source.weights, source.group, f"{name}.down_proj", (narrow, wide),
                                              source.intermediate_range, bias=bias)
        self.linears: list[SizedLinear] = [(self._gate_up.linear, narrow), (self._down, len(source.intermediate_range))]

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gate_up(x))


class FeedForward(Protocol):
    """Feed-forward block of a layer: an MLP or a mixture of experts."""

    linears: list[SizedLinear]

    def __call__(self, x: Tensor) -> Tensor: ...


class LlamaLayer:
    """Decoder layer of Llama: attention and a gated MLP, each behind a norm and with a residual."""

    def __init__(self, source: ModelReader[ModelConfig], layer: int, attention: SelfAttention, mlp: FeedForward,
                 read_norm: NormReader = ModelReader.read_norm) -> None:
        name = f"{source.prefix}.layers.{layer}"
        self._pre_attention_norm = read_norm(source, f"{name}.input_layernorm")
        self._attention = attention
        self._pre_mlp_norm = read_norm(source, f"{name}.post_attention_layernorm")
        self._mlp = mlp
        self.linears = attention.linears + mlp.linears

    def __call__(self, x: ResidualStream, rotary: RotaryEmbedding, inputs: ForwardInputs, cache: KVCache,
                 attention: AttentionBackend) -> None:
        x.add_deferred(self._attention(x.apply_pending_and_norm(self._pre_attention_norm), rotary, inputs, cache,
                                       attention))
        x.add_deferred(self._mlp(x.apply_pending_and_norm(self._pre_mlp_norm)))


def list_qkv_rows(source: ModelReader[ModelConfig], name: str, *, bias: bool) -> list[LinearRows]:
    """Return this rank's heads of separate weights for queries, keys and values."""
    config = source.config
    heads = ((source.head_range, config.num_heads), *2 * [(source.kv_head_range, config.num_kv_heads)])
    return [LinearRows(f"{name}.{projection}", (number * config.head_dim, config.hidden_size),
                       compute_head_rows(head_range, config.head_dim), bias)
            for projection, (head_range, number) in zip(("q_proj", "k_proj", "v_proj"), heads, strict=True)]


def compute_head_rows(head_range: range, head_dim: int) -> range:
    """Return the rows of a projection's weight that belong to these heads."""
    return range(head_range.start * head_dim, head_range.stop * head_dim)


def parse_llama_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    reject_sliding_windows(hf_config)
    config: ModelConfig = parse_common_config(hf_config,
                                              attention_bias=hf_config.get_bool("attention_bias", default=False),
                                              mlp_bias=hf_config.get_bool("mlp_bias", default=False))
    return config


def reject_sliding_windows(hf_config: JsonConfig) -> None:
    if set(hf_config.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError(
            f"{hf_config.source}: layer_types {sorted(set(hf_config.get('layer_types')))} are not supported; "
            f"supported: full_attention in every layer")


def read_layer(source: ModelReader[ModelConfig], layer: int) -> LlamaLayer:
    bias = source.config.attention_bias
    return LlamaLayer(source, layer, SelfAttention(source, layer, qkv_bias=bias, output_bias=bias),
                      GatedMlp(source, layer, bias=source.config.mlp_bias))


def read_llama(source: ModelReader[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer)
