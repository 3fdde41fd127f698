"""Parts of the layers of most decoders: attention, a gated MLP, and the layer with a norm before each. The loaders
expect tensors that are named as in Llama."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from shard.layers.parallel_linear import (
    LinearRows,
    RowParallelLinear,
    load_column_parallel_linear,
    load_gated_linear,
    load_row_parallel_linear,
)
from shard.layers.rotary import QKNorm
from shard.models.config import ModelConfig
from shard.models.decoder import LayerInputs, ModelLoader, NormLoader, SizedLinear
from shard.ops.norm import Norm, ResidualStream


class SelfAttention:
    """Self-attention with rotary embedding and an optional QK norm."""

    def __init__(self, source: ModelLoader[ModelConfig], layer: int, qkv_rows: Sequence[LinearRows],
                 output_linear: RowParallelLinear, *, qk_norm: QKNorm | None = None,
                 query_factor: float = 1.0) -> None:
        """`qkv_rows`: this rank's queries, then its keys, then its values. `query_factor`: factor of this layer's
        queries, in addition to the scale of all layers."""
        self._layer, self._qk_norm, self._query_factor = layer, qk_norm, query_factor
        self._head_dim = source.config.head_dim
        self._qkv = load_column_parallel_linear(source.weights, qkv_rows)
        self._output_linear = output_linear
        self.linears: list[SizedLinear] = [
            (self._qkv, source.config.hidden_size), (self._output_linear, len(source.head_range) * self._head_dim)]

    def __call__(self, x: Tensor, context: LayerInputs) -> Tensor:
        return self._output_linear(self._attend(x, context))

    def forward_partial(self, x: Tensor, context: LayerInputs) -> Tensor:
        """Return this rank's summand of the result."""
        return self._output_linear.linear(self._attend(x, context))

    def _attend(self, x: Tensor, context: LayerInputs) -> Tensor:
        """`[tokens, hidden] -> [tokens, heads * head_dim]`"""
        inputs, cache, attention, rotary = context
        qkv_heads = self._qkv(x).view(len(x), -1, self._head_dim)  # [tokens, heads + 2 * kv heads, head_dim]
        queries = rotary.rotate_and_cache(qkv_heads, self._qk_norm, cache, self._layer, inputs.slots)
        if self._query_factor != 1.0:
            queries = queries * self._query_factor
        return attention.run(queries, cache, self._layer, inputs.attention_plan)


class GatedMlp:
    """MLP with a gate, up and down projection (SwiGLU or GeGLU)."""

    def __init__(self, source: ModelLoader[ModelConfig], layer: int, *, activation: str = "silu",
                 gate_up_rows: Sequence[LinearRows] = ()) -> None:
        """`gate_up_rows`: gate and up, if the checkpoint has them in one tensor."""
        config, name = source.config, f"{source.prefix}.layers.{layer}.mlp"
        wide, narrow, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        gate, up = gate_up_rows or (LinearRows(f"{name}.{projection}", (wide, narrow), source.intermediate_range, bias)
                                    for projection in ("gate_proj", "up_proj"))
        self._gate_up = load_gated_linear(source.weights, gate, up, activation)
        self._down = load_row_parallel_linear(source.weights, source.group, f"{name}.down_proj", (narrow, wide),
                                              source.intermediate_range, bias=bias)
        self.linears: list[SizedLinear] = [(self._gate_up.linear, narrow), (self._down, len(source.intermediate_range))]

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gate_up(x))


class MlpOrMoe(Protocol):
    """Feed-forward block of a layer: an MLP or a mixture of experts."""

    linears: list[SizedLinear]

    def __call__(self, x: Tensor) -> Tensor: ...


class PreNormLayer:
    """Decoder layer of attention and a feed-forward block, each behind a norm and with a residual."""

    def __init__(self, pre_attention_norm: Norm, attention: SelfAttention, pre_mlp_norm: Norm,
                 mlp: MlpOrMoe) -> None:
        self._pre_attention_norm, self._attention = pre_attention_norm, attention
        self._pre_mlp_norm, self._mlp = pre_mlp_norm, mlp
        self.linears = attention.linears + mlp.linears

    def __call__(self, x: ResidualStream, context: LayerInputs) -> None:
        x.add_deferred(self._attention(x.apply_pending_and_norm(self._pre_attention_norm), context))
        x.add_deferred(self._mlp(x.apply_pending_and_norm(self._pre_mlp_norm)))


def compute_head_rows(head_range: range, head_dim: int) -> range:
    """Return the rows of a projection's weight that belong to these heads."""
    return range(head_range.start * head_dim, head_range.stop * head_dim)


def load_attention(source: ModelLoader[Any], layer: int, *, qk_norm: QKNorm | None = None,
                   qkv_rows: Sequence[LinearRows] = (), output_bias: bool | None = None) -> SelfAttention:
    """Load attention whose tensors are named as in Llama. `qkv_rows`: queries, keys and values, if the checkpoint has
    them in one tensor. `output_bias`: by default as the config's `attention_bias`."""
    config, name = source.config, f"{source.prefix}.layers.{layer}.self_attn"
    source.weights.ignore_tensor(f"{name}.rotary_emb.inv_freq")  # older files have it, and it follows from the config
    output_linear = load_row_parallel_linear(
        source.weights, source.group, f"{name}.o_proj", (config.hidden_size, config.num_heads * config.head_dim),
        compute_head_rows(source.head_range, config.head_dim),
        bias=config.attention_bias if output_bias is None else output_bias)
    queries, keys_or_values = (source.head_range, config.num_heads), (source.kv_head_range, config.num_kv_heads)
    rows = qkv_rows or [
        LinearRows(f"{name}.{projection}", (number * config.head_dim, config.hidden_size),
                   compute_head_rows(head_range, config.head_dim), config.attention_bias)
        for projection, (head_range, number) in (("q_proj", queries), ("k_proj", keys_or_values),
                                                 ("v_proj", keys_or_values))]
    return SelfAttention(source, layer, rows, output_linear, qk_norm=qk_norm)


def load_pre_norm_layer(source: ModelLoader[Any], layer: int, attention: SelfAttention, mlp: MlpOrMoe,
                        load_norm: NormLoader = ModelLoader.load_norm) -> PreNormLayer:
    """Load the norms of a layer and return the layer. Its tensors are named as in Llama."""
    name = f"{source.prefix}.layers.{layer}"
    return PreNormLayer(load_norm(source, f"{name}.input_layernorm"), attention,
                        load_norm(source, f"{name}.post_attention_layernorm"), mlp)
