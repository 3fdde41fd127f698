"""Parts shared by GPT-style models: layer norms with a bias, an MLP with GELU, and attention whose queries, keys and
values may be one tensor of the checkpoint.

Written as for one device: tensor parallelism is in the linears.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.json_config import Given
from shard.layers.attention_input import Turn
from shard.layers.parallel_linear import Part, RowLinear, activated_linear, column_linear, row_linear
from shard.models.config import ModelConfig
from shard.models.decoder import Product, Source
from shard.models.llama import SelfAttention
from shard.ops.norm import LayerNorm, Norm
from shard.ops.residual import Residual
from shard.parallel.group import Group

GELUS = {  # names in config.json, and torch's `approximate` for each
    "gelu": "none", "gelu_python": "none",
    "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_python_tanh": "tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig(ModelConfig):
    approximate: str  # approximation of GELU: none or tanh
    parallel: bool = False  # whether attention and MLP run in parallel on the same input, not one after the other


class FusedAttention:
    def __init__(self, source: Source[GptConfig], layer: int, qkv: Sequence[Part], output: RowLinear,
                 attenuation: float = 1.0) -> None:
        """`qkv`: this rank's queries, then its keys, then its values. `attenuation`: factor of this layer's queries, in
        addition to the scale of all layers."""
        self._layer, self._attenuation = layer, attenuation
        self._head_dim = source.config.head_dim
        self._qkv = column_linear(source.weights, qkv)
        self._output = output
        self.products: list[Product] = [
            (self._qkv, source.config.hidden_size), (self._output, len(source.heads) * self._head_dim)]

    def __call__(self, x: Tensor, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        return self._output(self._mix(x, turn, inputs, cache, attention))

    def partial(self, x: Tensor, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """Return this rank's summand of the result."""
        return self._output.partial(self._mix(x, turn, inputs, cache, attention))

    def _mix(self, x: Tensor, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """`[tokens, hidden] -> [tokens, heads * head_dim]`"""
        heads = self._qkv(x).view(len(x), -1, self._head_dim)  # [tokens, heads + 2 * kv heads, head_dim]
        queries = turn.enter(heads, None, cache, self._layer, inputs.slots)
        if self._attenuation != 1.0:
            queries = queries * self._attenuation
        return attention.run(queries, cache, self._layer, inputs.plan)


class Mlp:
    def __init__(self, source: Source[GptConfig], widening: str, narrowing: str, *, bias: bool,
                 turned: bool = False) -> None:
        """`widening`, `narrowing`: names of the linears. `turned`: the file holds weights transposed, [in, out]."""
        wide, narrow, mine = source.config.intermediate_size, source.config.hidden_size, source.intermediate
        self._widen = activated_linear(
            source.weights, Part(widening, (wide, narrow), mine, bias, turned), source.config.approximate)
        self._narrow = row_linear(source.weights, source.group, narrowing, (narrow, wide), mine, bias=bias,
                                  turned=turned)
        self.products: list[Product] = [(self._widen, narrow), (self._narrow, len(mine))]

    def __call__(self, x: Tensor) -> Tensor:
        return self._narrow(self._widen(x))

    def partial(self, x: Tensor) -> Tensor:
        """Return this rank's summand of the result."""
        return self._narrow.partial(self._widen(x))


class SequentialLayer:
    def __init__(self, before_attention: Norm, attention: FusedAttention | SelfAttention, before_mlp: Norm,
                 mlp: Mlp) -> None:
        self._before_attention, self._attention = before_attention, attention
        self._before_mlp, self._mlp = before_mlp, mlp
        self.products = attention.products + mlp.products

    def __call__(self, x: Residual, turn: Any, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        x.add(self._attention(x.normed(self._before_attention), turn, inputs, cache, attention))
        x.add(self._mlp(x.normed(self._before_mlp)))


class ParallelLayer:
    """Layer with parallel attention and MLP, whose outputs need one all-reduce together."""

    def __init__(self, group: Group, before_attention: Norm, attention: FusedAttention, before_mlp: Norm | None,
                 mlp: Mlp) -> None:
        """If `before_mlp` is None, the MLP has the same input as attention."""
        self._group = group
        self._before_attention, self._attention = before_attention, attention
        self._before_mlp, self._mlp = before_mlp, mlp
        self.products = attention.products + mlp.products

    def __call__(self, x: Residual, turn: Any, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        seen = x.normed(self._before_attention)
        both = self._attention.partial(seen, turn, inputs, cache, attention)
        both += self._mlp.partial(seen if self._before_mlp is None else x.normed(self._before_mlp))
        x.add(self._group.sum(both))


def layer_norm(source: Source[GptConfig], name: str) -> LayerNorm:
    shape = (source.config.hidden_size,)
    return LayerNorm(source.weights.whole(f"{name}.weight", shape), source.config.norm_epsilon,
                     source.weights.whole(f"{name}.bias", shape))


def grouped_parts(source: Source[GptConfig], name: str, *, bias: bool) -> list[Part]:
    """Return this rank's parts of a tensor that holds, for every KV head, its queries, then its key, then its value:

        | query 0 .. query group-1 | key 0 | value 0 | query group .. | key 1 | value 1 | ...
    """
    config, heads = source.config, source.heads
    group, num_blocks = config.num_heads // config.num_kv_heads, config.num_heads + 2 * config.num_kv_heads

    def part(kv_head: int, first: int, end: int) -> Part:
        rows = ((kv_head * (group + 2) + block) * config.head_dim for block in (first, end))
        return Part(name, (num_blocks * config.head_dim, config.hidden_size), range(*rows), bias)

    queries = [part(kv_head, max(heads.start - kv_head * group, 0), min(heads.stop - kv_head * group, group))
               for kv_head in source.kv_heads]
    keys, values = ([part(kv_head, group + block, group + block + 1) for kv_head in source.kv_heads]
                    for block in (0, 1))
    return queries + keys + values


def read_gelu(given: Given, name: str, usual: str) -> str:
    """Return torch's `approximate` for the activation that config.json has under `name`; `usual` is the default."""
    activation = given.get(name) or usual
    given.one_of(name, activation, GELUS)
    return GELUS[activation]


def share_evenly(given: Given, hidden_size: int, num_heads: int) -> int:
    """Return the width of a head."""
    if hidden_size % num_heads:
        raise ValueError(f"{given.source}: the hidden size ({hidden_size}) must be a multiple of the number of "
                         f"attention heads ({num_heads})")
    return hidden_size // num_heads
