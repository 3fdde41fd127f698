"""A language model as one rank has it: embedding, layers, norm, head. Knows nothing of what a layer does."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from shard.attention.backends import Attention
from shard.cache import Cache
from shard.distributed import Group, copied_share, share, uneven_share
from shard.layers.embedding import Embedding, Head, read_head, tied_head
from shard.layers.entering import NoTurn
from shard.layers.linear import Linear
from shard.layers.norm import Norm, RMSNorm
from shard.layers.residual import Residual
from shard.layers.rotary import RotaryTable
from shard.models.config import ModelConfig, Rotary
from shard.step import Inputs
from shard.weights import Weights

Product = tuple[Linear, int]  # and the width that it takes
Config_co = TypeVar("Config_co", bound=ModelConfig, covariant=True)


class LanguageModel(Protocol):
    """One rank's part of a model, whoever computes it: a `Decoder`, or what stands in its place."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def num_kv_heads(self) -> int:
        """Of this rank."""

    @property
    def head_dim(self) -> int: ...

    @property
    def products(self) -> Sequence[Product]:
        """Of all layers."""

    def hidden(self, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """`[tokens, hidden]`, after the last norm"""

    def logits(self, hidden: Tensor) -> Tensor | None:
        """`[rows, hidden] -> [rows, vocabulary]` in float32, on rank 0; on the others nothing"""

    @property
    def num_varied(self) -> int:
        """So many first layers have one of each kind among them."""

    @property
    def steady(self) -> bool:
        """Whether it launches the same for equally many tokens that decode, whatever they are."""

    def cut(self, num_layers: int) -> "LanguageModel":
        """The first layers only, with the same weights."""


class Layer(Protocol):
    @property
    def products(self) -> Sequence[Product]:
        """In the order of a step, for who measures what they take alone."""

    def __call__(self, x: Residual, turn: Any, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        """`x` is of `[tokens, hidden]`. `turn` is what the model's positions make of a step."""


class Embeds(Protocol):
    def __call__(self, inputs: Inputs) -> Tensor:
        """`[tokens, hidden]`, a new tensor"""


class Positions(Protocol):
    def at(self, positions: Tensor) -> Any:
        """What layers need to know of the positions of a step."""


class Unturned:
    """For models whose queries and keys do not depend on positions."""

    def at(self, positions: Tensor) -> NoTurn:  # noqa: ARG002 - as of every kind of positions
        return NoTurn()


@dataclass(frozen=True, slots=True)
class Source(Generic[Config_co]):
    """A checkpoint, and whose part of it is wanted."""

    config: Config_co
    weights: Weights
    group: Group
    prefix: str = "model"  # of the names of all tensors but the head's

    @property
    def heads(self) -> range:
        return share(self.config.num_heads, self.group.rank, self.group.size)

    @property
    def kv_heads(self) -> range:
        return copied_share(self.config.num_kv_heads, self.group.rank, self.group.size)

    @property
    def intermediate(self) -> range:
        """Not the same number on every rank where it does not go even."""
        return uneven_share(self.config.intermediate_size, self.group.rank, self.group.size)

    def rotary_table(self) -> RotaryTable:
        assert self.config.rotary is not None
        return self.table_of(self.config.rotary)

    def table_of(self, rotary: Rotary) -> RotaryTable:
        return RotaryTable(rotary, self.config.head_dim, self.config.max_positions, self.weights.device)

    def norm(self, name: str) -> Norm:
        return RMSNorm(self.norm_weight(name), self.config.norm_epsilon)

    def norm_weight(self, name: str) -> Tensor:
        return self.weights.whole(f"{name}.weight", (self.config.hidden_size,))


ReadNorm = Callable[[Source[Any], str], Norm]


@dataclass(frozen=True, slots=True)
class Decoder:
    config: ModelConfig
    num_kv_heads: int  # of this rank
    embedding: Embeds
    positions: Positions
    layers: Sequence[Layer]
    norm: Norm
    head: Head
    steady: bool = True

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def head_dim(self) -> int:
        return self.config.head_dim

    @property
    def products(self) -> list[Product]:
        return [product for layer in self.layers for product in layer.products]

    @property
    def num_varied(self) -> int:
        return one_of_each(layer.products for layer in self.layers)

    def hidden(self, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """`[tokens, hidden]`, after the last norm"""
        x = Residual(self.embedding(inputs))
        turn = self.positions.at(inputs.positions)
        for layer in self.layers:
            layer(x, turn, inputs, cache, attention)
        return x.normed(self.norm)

    def logits(self, hidden: Tensor) -> Tensor | None:
        """`[rows, hidden] -> [rows, vocabulary]` in float32, on rank 0; on the others nothing"""
        return self.head(hidden)

    def cut(self, num_layers: int) -> "Decoder":
        """The first layers only, with the same weights."""
        return replace(self, layers=self.layers[:num_layers])


def one_of_each(layers: Iterable[Sequence[Product]]) -> int:
    """How many first layers it takes to have one of each kind: layers are alike that take products as many, as wide and
    made in the same way."""
    kinds = [[(type(product), width) for product, width in layer] for layer in layers]
    return 1 + max(kinds.index(kind) for kind in kinds)


def read_ends(source: Source[Any], embedding: str, head: str) -> tuple[Embedding, Head]:
    """By the names of their tensors. They come before the layers: while a head is packed, memory holds it twice."""
    config, weights, group = source.config, source.weights, source.group
    check_ranks(config, group.size)
    shape = (config.vocabulary_size, config.hidden_size)
    embeds = Embedding(weights, group, embedding, shape)
    if not config.tied:
        return embeds, read_head(weights, group, head, shape)
    weights.ignore(head)
    return embeds, tied_head(weights, group, (head, embedding), shape, embeds)


def read_decoder(source: Source[Any], read_layer: Callable[[Source[Any], int], Layer],
                 read_norm: ReadNorm = Source.norm, positions: Positions | None = None) -> Decoder:
    """With the names of Llama."""
    config, prefix = source.config, source.prefix
    if source.weights.holds("embed_tokens.weight"):
        source.weights.put_beneath(f"{prefix}.")
    embedding, head = read_ends(source, f"{prefix}.embed_tokens.weight", "lm_head.weight")
    return Decoder(config, len(source.kv_heads), embedding, positions or source.rotary_table(),
                   read_layers(source, read_layer), read_norm(source, f"{prefix}.norm"), head)


def read_layers(source: Source[Any], read_layer: Callable[[Source[Any], int], Layer]) -> list[Layer]:
    return [read_layer(source, number) for number in range(source.config.num_layers)]


def check_ranks(config: ModelConfig, size: int) -> None:
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    if num_heads % size or (num_kv_heads % size and size % num_kv_heads):
        raise ValueError(f"{size} shards cannot share {num_heads} attention heads with {num_kv_heads} key/value heads; "
                         f"choose a --num-shard that divides both, or divides the first and is a multiple of the other")
