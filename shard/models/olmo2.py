"""OLMo 2: Llama with norms after attention and MLP, and norms over all queries and over all keys of a token.
The sums of squares of the latter two norms are summed over the ranks (docs/concepts/exactness.md, "Collectives of a
step")."""

from typing import Any

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.models.config import ModelConfig, check_activation, parse_common_config, reject_sliding_windows
from shard.models.decoder import Decoder, LayerInputs, ModelLoader, load_decoder
from shard.models.decoder_layers import GatedMlp, compute_head_rows, load_attention
from shard.ops.norm import Fp32WeightRMSNorm, ResidualStream


class GlobalQKNorm:
    """Two RMS norms at once: over all queries and over all keys of a token, including those on other ranks."""

    def __init__(self, source: ModelLoader[ModelConfig], layer: int) -> None:
        config, name = source.config, f"{source.prefix}.layers.{layer}.self_attn"
        projections = (("q_norm", config.num_heads, source.head_range),
                       ("k_norm", config.num_kv_heads, source.kv_head_range))
        self._weight = torch.cat([  # [heads + kv heads, head_dim]
            source.weights.read_rows(f"{name}.{norm}.weight", (number * config.head_dim,),
                                     compute_head_rows(head_range, config.head_dim))
            for norm, number, head_range in projections]).float().view(-1, config.head_dim)
        self._group = source.group
        self._rank_widths = [len(head_range) * config.head_dim for _, _, head_range in projections]  # on this rank
        device = self._weight.device
        shares = [1 / (number * config.head_dim) for _, number, _ in projections]
        self._inverse_widths = torch.tensor(shares, device=device)
        # ranks may hold copies of the same keys, of which the first counts
        num_copies = max(1, source.group.size // config.num_kv_heads)
        self._sum_weights = torch.tensor([1.0, float(source.group.rank % num_copies == 0)], device=device)
        self._epsilon = torch.tensor(config.norm_epsilon, device=device)
        self._scale_index_of_head = torch.tensor(
            [kind for kind, (_, _, head_range) in enumerate(projections) for _ in head_range], device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [tokens, heads + kv heads, head_dim]`"""
        wide = x.float()
        queries_and_keys = torch.split(wide.flatten(1), self._rank_widths, dim=-1)
        lengths = [torch.linalg.vector_norm(values, dim=-1) for values in queries_and_keys]
        squares = torch.stack(lengths, dim=-1).square_().mul_(self._sum_weights)  # [tokens, 2]
        scale = self._group.all_reduce_sum(squares).mul(self._inverse_widths).add_(self._epsilon).rsqrt_()
        return (wide * scale.index_select(1, self._scale_index_of_head).unsqueeze(-1)).mul_(self._weight).to(x.dtype)


class Olmo2Layer:
    """Decoder layer with norms after attention and MLP."""

    def __init__(self, source: ModelLoader[ModelConfig], layer: int) -> None:
        name = f"{source.prefix}.layers.{layer}"
        self._attention = load_attention(source, layer, qk_norm=GlobalQKNorm(source, layer))
        self._mlp = GatedMlp(source, layer)
        self._post_attention_norm = load_olmo2_norm(source, f"{name}.post_attention_layernorm")
        self._post_mlp_norm = load_olmo2_norm(source, f"{name}.post_feedforward_layernorm")
        self.linears = self._attention.linears + self._mlp.linears

    def __call__(self, x: ResidualStream, context: LayerInputs) -> None:
        x.add_deferred(self._post_attention_norm(self._attention(x.apply_pending(), context)))
        x.add_deferred(self._post_mlp_norm(self._mlp(x.apply_pending())))


def parse_olmo2_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    reject_sliding_windows(hf_config)
    return parse_common_config(hf_config.with_defaults_for_absent_keys(rms_norm_eps=1e-5), ModelConfig,
                               attention_bias=hf_config.get_bool("attention_bias"))


def load_olmo2_norm(source: ModelLoader[Any], name: str) -> Fp32WeightRMSNorm:
    return Fp32WeightRMSNorm(source.read_norm_weight(name).float(), source.config.norm_epsilon)


def load_olmo2(source: ModelLoader[ModelConfig]) -> Decoder:
    return load_decoder(source, Olmo2Layer, load_olmo2_norm)
