"""Parts shared by GPT-style models: layer norms with a bias, an MLP with GELU, and attention whose queries, keys and
values may be one tensor of the checkpoint."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shard.json_config import JsonConfig
from shard.layers.parallel_linear import LinearRows, load_linear_with_gelu, load_row_parallel_linear
from shard.models.config import ModelConfig
from shard.models.decoder import LayerInputs, ModelLoader, SizedLinear
from shard.models.decoder_layers import SelfAttention, compute_head_rows
from shard.ops.norm import LayerNorm, Norm, ResidualStream
from shard.parallel.group import RankGroup

GELU_APPROXIMATIONS = {  # names in config.json, and torch's `approximate` for each
    "gelu": "none", "gelu_python": "none",
    "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_python_tanh": "tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig(ModelConfig):
    """Model config of models whose MLP is two linears with GELU between: GPT-2, GPT-NeoX, Falcon, StarCoder2 and the
    encoders."""

    gelu_approximate: str  # approximation of GELU: none or tanh
    # whether attention and MLP run in parallel on the same input, not one after the other
    parallel_residual: bool = False


class GeluMlp:
    """MLP of two linears with GELU between."""

    def __init__(self, source: ModelLoader[GptConfig], up_name: str, down_name: str, *,
                 transposed: bool = False) -> None:
        """`up_name`, `down_name`: names of the linears. `transposed`: the file holds weights transposed, [in, out]."""
        wide, narrow, bias = source.config.intermediate_size, source.config.hidden_size, source.config.mlp_bias
        intermediate_range = source.intermediate_range
        self._up_gelu = load_linear_with_gelu(source.weights,
                                              LinearRows(up_name, (wide, narrow), intermediate_range, bias, transposed),
                                              source.config.gelu_approximate)
        self._down = load_row_parallel_linear(source.weights, source.group, down_name, (narrow, wide),
                                              intermediate_range, bias=bias, transposed=transposed)
        self.linears: list[SizedLinear] = [(self._up_gelu, narrow), (self._down, len(intermediate_range))]

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._up_gelu(x))

    def forward_partial(self, x: Tensor) -> Tensor:
        """Return this rank's summand of the result."""
        return self._down.linear(self._up_gelu(x))


class ParallelResidualLayer:
    """Layer with parallel attention and MLP, whose outputs need one sum over the ranks together."""

    def __init__(self, group: RankGroup, pre_attention_norm: Norm, attention: SelfAttention, pre_mlp_norm: Norm | None,
                 mlp: GeluMlp) -> None:
        """If `pre_mlp_norm` is None, the MLP has the same input as attention."""
        self._group = group
        self._pre_attention_norm, self._attention = pre_attention_norm, attention
        self._pre_mlp_norm, self._mlp = pre_mlp_norm, mlp
        self.linears = attention.linears + mlp.linears

    def __call__(self, x: ResidualStream, context: LayerInputs) -> None:
        normed = x.apply_pending_and_norm(self._pre_attention_norm)
        partial_sum = self._attention.forward_partial(normed, context)
        partial_sum += self._mlp.forward_partial(normed if self._pre_mlp_norm is None
                                                 else x.apply_pending_and_norm(self._pre_mlp_norm))
        x.add_deferred(self._group.all_reduce_sum(partial_sum))


def load_layer_norm(source: ModelLoader[Any], name: str) -> LayerNorm:
    return LayerNorm(source.read_norm_weight(name), source.config.norm_epsilon, source.read_norm_weight(name, "bias"))


def load_grouped_attention(source: ModelLoader[GptConfig], layer: int, name: str, *unused: str) -> SelfAttention:
    """Load attention with one tensor that holds queries, keys and values by KV head. `unused`: tensors that older
    files have."""
    config = source.config
    for tensor in unused:
        source.weights.ignore_tensor(f"{name}.{tensor}")
    output_linear = load_row_parallel_linear(source.weights, source.group, f"{name}.dense",
                                             (config.hidden_size, config.hidden_size),
                                             compute_head_rows(source.head_range, config.head_dim),
                                             bias=config.attention_bias)
    qkv_rows = list_grouped_qkv_rows(source, f"{name}.query_key_value", bias=config.attention_bias)
    return SelfAttention(source, layer, qkv_rows, output_linear)


def list_grouped_qkv_rows(source: ModelLoader[GptConfig], name: str, *, bias: bool) -> list[LinearRows]:
    """Return this rank's parts of a tensor that holds, for every KV head, its queries, then its key, then its value:

        | query 0 .. query group-1 | key 0 | value 0 | query group .. | key 1 | value 1 | ...
    """
    config, heads = source.config, source.head_range
    group, num_blocks = config.num_heads // config.num_kv_heads, config.num_heads + 2 * config.num_kv_heads

    def make_linear_rows(kv_head: int, first_head: int, end_head: int) -> LinearRows:
        rows = ((kv_head * (group + 2) + block) * config.head_dim for block in (first_head, end_head))
        return LinearRows(name, (num_blocks * config.head_dim, config.hidden_size), range(*rows), bias)

    queries = [make_linear_rows(kv_head, max(heads.start - kv_head * group, 0),
                                min(heads.stop - kv_head * group, group)) for kv_head in source.kv_head_range]
    keys, values = ([make_linear_rows(kv_head, group + block, group + block + 1) for kv_head in source.kv_head_range]
                    for block in (0, 1))
    return queries + keys + values


def parse_gelu_approximation(hf_config: JsonConfig, key: str, default_activation: str) -> str:
    """Return torch's `approximate` for the activation that config.json has under `key`; `default_activation` is the
    default."""
    activation = hf_config.get(key) or default_activation
    hf_config.require_supported(key, activation, GELU_APPROXIMATIONS)
    return GELU_APPROXIMATIONS[activation]


def compute_head_dim(hf_config: JsonConfig, hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        raise ValueError(f"{hf_config.source}: the hidden size ({hidden_size}) must be a multiple of the number of "
                         f"attention heads ({num_heads})")
    return hidden_size // num_heads
