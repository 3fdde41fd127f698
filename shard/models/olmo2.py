"""OLMo 2: Llama with norms after attention and MLP, and norms over all queries and over all keys of a token.

Written as for one device, except for the latter two norms, whose sums of squares are summed over the ranks.
"""

from typing import Any

import torch
from torch import Tensor

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.json_config import Given
from shard.layers.attention_input import Turn
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.hf_config import describe, refuse_activation
from shard.models.llama import Mlp, SelfAttention, refuse_windows, widened
from shard.ops.norm import WideRMSNorm
from shard.ops.residual import Residual


class WholeNorm:
    """Two RMS norms at once: over all queries and over all keys of a token, including those on other ranks."""

    def __init__(self, source: Source[ModelConfig], layer: int) -> None:
        config, name = source.config, f"{source.prefix}.layers.{layer}.self_attn"
        heads = (("q_norm", config.num_heads, source.heads), ("k_norm", config.num_kv_heads, source.kv_heads))
        self._weight = torch.cat([  # [heads + kv heads, head_dim]
            source.weights.rows(f"{name}.{norm}.weight", (number * config.head_dim,), widened(mine, config.head_dim))
            for norm, number, mine in heads]).float().view(-1, config.head_dim)
        self._group = source.group
        self._widths = [len(mine) * config.head_dim for _, _, mine in heads]  # on this rank
        device = self._weight.device
        shares = [1 / (number * config.head_dim) for _, number, _ in heads]
        self._share = torch.tensor(shares, device=device)
        self._mine = torch.tensor([1.0, counts_keys(source)], device=device)
        self._epsilon = torch.tensor(config.norm_epsilon, device=device)
        self._of_head = torch.tensor([kind for kind, (_, _, mine) in enumerate(heads) for _ in mine], device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [tokens, heads + kv heads, head_dim]`"""
        wide = x.float()
        kinds = torch.split(wide.flatten(1), self._widths, dim=-1)
        lengths = [torch.linalg.vector_norm(values, dim=-1) for values in kinds]
        squares = torch.stack(lengths, dim=-1).square_().mul_(self._mine)  # [tokens, 2]
        scale = self._group.sum(squares).mul(self._share).add_(self._epsilon).rsqrt_()
        return (wide * scale.index_select(1, self._of_head).unsqueeze(-1)).mul_(self._weight).to(x.dtype)


def counts_keys(source: Source[ModelConfig]) -> float:
    """Return 1 on the first of the ranks that hold copies of the same keys, 0 on the others."""
    copies = max(1, source.group.size // source.config.num_kv_heads)
    return float(source.group.rank % copies == 0)


class Olmo2Layer:
    def __init__(self, source: Source[ModelConfig], layer: int, attention: SelfAttention, mlp: Mlp) -> None:
        name = f"{source.prefix}.layers.{layer}"
        self._attention, self._mlp = attention, mlp
        self._after_attention = read_norm(source, f"{name}.post_attention_layernorm")
        self._after_mlp = read_norm(source, f"{name}.post_feedforward_layernorm")
        self.products = attention.products + mlp.products

    def __call__(self, x: Residual, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        x.add(self._after_attention(self._attention(x.whole(), turn, inputs, cache, attention)))
        x.add(self._after_mlp(self._mlp(x.whole())))


def describe_olmo2(given: Given) -> ModelConfig:
    refuse_activation(given, "silu")
    refuse_windows(given)
    config: ModelConfig = describe(given.usually(rms_norm_eps=1e-5),
                                   attention_bias=given.flag("attention_bias", default=False))
    return config


def read_norm(source: Source[Any], name: str) -> WideRMSNorm:
    return WideRMSNorm(source.norm_weight(name).float(), source.config.norm_epsilon)


def read_layer(source: Source[ModelConfig], layer: int) -> Olmo2Layer:
    bias = source.config.attention_bias
    attention = SelfAttention(source, layer, qkv_bias=bias, output_bias=bias, head_norm=WholeNorm(source, layer))
    return Olmo2Layer(source, layer, attention, Mlp(source, layer, bias=False))


def read_olmo2(source: Source[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer, read_norm)
