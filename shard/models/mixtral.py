"""Mixtral: Llama with a mixture of experts instead of the MLP, and the parts that other MoE models share with it.

Every expert is split over the ranks, like a dense MLP (tensor parallelism, not expert parallelism).
"""

from dataclasses import dataclass, replace

from torch import Tensor

from shard.json_config import Given
from shard.layers.moe import Expert, Experts, Router
from shard.layers.parallel_linear import Part, column_linear, gated_linear, row_linear
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Product, Source, read_decoder
from shard.models.hf_config import describe, read_windows, refuse_activation
from shard.models.llama import LlamaLayer, SelfAttention
from shard.parallel.group import Alone, uneven_share


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig(ModelConfig):
    num_experts: int
    num_chosen: int  # experts per token
    expert_size: int  # inner width of one expert
    normalised: bool = True  # whether the shares of the chosen experts sum to 1
    dense_layers: tuple[int, ...] = ()  # layers with an MLP instead of experts


@dataclass(frozen=True, slots=True)
class Names:
    """Module names of a mixture of experts in a checkpoint."""

    mixture: str
    gate: str
    up: str
    down: str


NAMES = Names("block_sparse_moe", "w1", "w3", "w2")


class Mixture:
    def __init__(self, source: Source[MixtureConfig], layer: int, names: Names) -> None:
        config, name = source.config, f"model.layers.{layer}.{names.mixture}"
        gate = column_linear(source.weights, [
            Part(f"{name}.gate", (config.num_experts, config.hidden_size), range(config.num_experts), bias=False)])
        experts = [self._read(source, f"{name}.experts.{number}", names) for number in range(config.num_experts)]
        self._experts = Experts(Router(gate, config.num_chosen, normalised=config.normalised), experts, source.group,
                                source.weights.sites.bearers)
        # The linears that one token uses.
        self.products: list[Product] = [(gate, config.hidden_size)]
        for expert in experts[:config.num_chosen]:
            self.products += [(expert.gated, config.hidden_size), (expert.down, len(self._mine(source)))]

    @staticmethod
    def _mine(source: Source[MixtureConfig]) -> range:
        return uneven_share(source.config.expert_size, source.group.rank, source.group.size)

    def _read(self, source: Source[MixtureConfig], name: str, names: Names) -> Expert:
        wide, narrow, mine = source.config.expert_size, source.config.hidden_size, self._mine(source)
        gate, up = (Part(f"{name}.{projection}", (wide, narrow), mine, bias=False)
                    for projection in (names.gate, names.up))
        gated = gated_linear(source.weights, gate, up)
        # Ranks sum once for all experts of a layer.
        down = row_linear(source.weights, Alone(), f"{name}.{names.down}", (narrow, wide), mine, bias=False)
        return Expert(gated, down)

    def __call__(self, x: Tensor) -> Tensor:
        return self._experts(x)


def describe_mixtral(given: Given) -> MixtureConfig:
    refuse_activation(given, "silu")
    config: MixtureConfig = describe(
        given, MixtureConfig, windows=read_windows(given, given.count("num_hidden_layers"), usual=True),
        num_experts=given.count("num_local_experts", 8), num_chosen=given.count("num_experts_per_tok", 2),
        expert_size=given.count("intermediate_size"))
    return checked(config, given)


def checked(config: MixtureConfig, given: Given) -> MixtureConfig:
    if config.num_chosen > config.num_experts:
        raise ValueError(f"{given.source}: num_experts_per_tok must be at most the number of experts "
                         f"({config.num_experts}), got {config.num_chosen}")
    return config


def read_layer(source: Source[MixtureConfig], layer: int) -> LlamaLayer:
    return LlamaLayer(source, layer, SelfAttention(source, layer, qkv_bias=False, output_bias=False),
                      Mixture(source, layer, NAMES))


def unsteady(decoder: Decoder) -> Decoder:
    """Return the decoder marked as not steady, since the tokens decide which experts run."""
    return replace(decoder, steady=False)


def read_mixtral(source: Source[MixtureConfig]) -> Decoder:
    return unsteady(read_decoder(source, read_layer))
