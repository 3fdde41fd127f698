"""Mixtral: Llama with a mixture of experts instead of the MLP, and the parts that other MoE models share with it. Every
expert is split over the ranks, like a dense MLP (tensor parallelism, not expert parallelism)."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from shard.json_config import JsonConfig
from shard.layers.moe import Expert, ExpertGate, RoutedExperts
from shard.layers.parallel_linear import (
    LinearRows,
    load_column_parallel_linear,
    load_gated_linear,
    load_row_parallel_linear,
)
from shard.models.config import ModelConfig, check_activation, parse_common_config, parse_sliding_windows
from shard.models.decoder import Decoder, ModelLoader, SizedLinear, load_decoder
from shard.models.decoder_layers import PreNormLayer, load_attention, load_pre_norm_layer
from shard.parallel.group import SingleRankGroup, uneven_rank_range


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(ModelConfig):
    num_experts: int
    num_experts_per_token: int
    expert_intermediate_size: int  # inner width of one expert
    normalize_routing_weights: bool = True  # whether the shares of the chosen experts sum to 1
    dense_layers: tuple[int, ...] = ()  # layers with an MLP instead of experts


@dataclass(frozen=True, slots=True)
class MoeModuleNames:
    """Module names of a mixture of experts in a checkpoint."""

    moe_block: str
    gate: str
    up: str
    down: str


MODULE_NAMES = MoeModuleNames("block_sparse_moe", "w1", "w3", "w2")


class MoeBlock:
    """Mixture of experts of one layer, read from a checkpoint."""

    def __init__(self, source: ModelLoader[MoeConfig], layer: int, module_names: MoeModuleNames) -> None:
        config, weights, name = source.config, source.weights, f"model.layers.{layer}.{module_names.moe_block}"
        wide, narrow = config.expert_intermediate_size, config.hidden_size
        expert_range = uneven_rank_range(wide, source.group.rank, source.group.size)

        def load_expert(expert_name: str) -> Expert:
            gate_rows, up_rows = (LinearRows(f"{expert_name}.{projection}", (wide, narrow), expert_range,
                                             has_bias=False) for projection in (module_names.gate, module_names.up))
            # Ranks sum once for all experts of a layer.
            down = load_row_parallel_linear(weights, SingleRankGroup(), f"{expert_name}.{module_names.down}",
                                            (narrow, wide), expert_range, bias=False)
            return Expert(load_gated_linear(weights, gate_rows, up_rows), down)

        gate = load_column_parallel_linear(weights, [LinearRows(f"{name}.gate", (config.num_experts, narrow),
                                                                range(config.num_experts), has_bias=False)])
        experts = [load_expert(f"{name}.experts.{number}") for number in range(config.num_experts)]
        self._experts = RoutedExperts(ExpertGate(gate, config.num_experts_per_token,
                                                 config.normalize_routing_weights),
                                      experts, source.group, weights.lora_targets.adapter_routing)
        # The linears that one token uses.
        self.linears: list[SizedLinear] = [(gate, narrow)]
        for expert in experts[:config.num_experts_per_token]:
            self.linears += [(expert.gate_up, narrow), (expert.down, len(expert_range))]

    def __call__(self, x: Tensor) -> Tensor:
        return self._experts(x)


def parse_mixtral_config(hf_config: JsonConfig) -> MoeConfig:
    return parse_moe_config(
        hf_config, sliding_windows=parse_sliding_windows(
            hf_config, hf_config.get_positive_int("num_hidden_layers"), enabled_by_default=True),
        num_experts=hf_config.get_positive_int("num_local_experts", 8),
        num_experts_per_token=hf_config.get_positive_int("num_experts_per_tok", 2),
        expert_intermediate_size=hf_config.get_positive_int("intermediate_size"))


def parse_moe_config(hf_config: JsonConfig, **overrides: Any) -> MoeConfig:
    check_activation(hf_config, "silu")
    config = parse_common_config(hf_config, MoeConfig, **overrides)
    if config.num_experts_per_token > config.num_experts:
        raise ValueError(f"{hf_config.source}: num_experts_per_tok must be at most the number of experts "
                         f"({config.num_experts}), got {config.num_experts_per_token}")
    return config


def load_layer(source: ModelLoader[MoeConfig], layer: int) -> PreNormLayer:
    return load_pre_norm_layer(source, layer, load_attention(source, layer), MoeBlock(source, layer, MODULE_NAMES))


def mark_not_capturable(decoder: Decoder) -> Decoder:
    """Return the decoder marked as not capturable, since the tokens decide which experts run."""
    return replace(decoder, is_capturable=False)


def load_mixtral(source: ModelLoader[MoeConfig]) -> Decoder:
    return mark_not_capturable(load_decoder(source, load_layer))
