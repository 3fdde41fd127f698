"""One rank's part of a decoder: embedding, layers, norm and head."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.checkpoint.reader import Weights
from shard.layers.attention_input import NoTurn
from shard.layers.embedding import Embedding, Head, read_head, tied_head
from shard.layers.rotary import RotaryTable
from shard.models.config import ModelConfig, Rotary
from shard.ops.linear import Linear
from shard.ops.norm import Norm, RMSNorm
from shard.ops.residual import Residual
from shard.parallel.group import Group, copied_share, share, uneven_share

Product = tuple[Linear, int]  # linear and its input width
Config_co = TypeVar("Config_co", bound=ModelConfig, covariant=True)


class LanguageModel(Protocol):
    """One rank's part of a model: a `Decoder`, or a `ForeignModel` made of modules of transformers."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def num_kv_heads(self) -> int:
        """Number of KV heads on this rank."""

    @property
    def head_dim(self) -> int: ...

    @property
    def products(self) -> Sequence[Product]:
        """Linears of all layers, each with its input width."""

    def hidden(self, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """Return the hidden states after the last norm, `[tokens, hidden]`."""

    def logits(self, hidden: Tensor) -> Tensor | None:
        """Map `[rows, hidden]` to float32 logits, `[rows, vocabulary]`, on rank 0; return None on other ranks."""

    @property
    def num_varied(self) -> int:
        """Smallest number of first layers that include every kind of layer."""

    @property
    def steady(self) -> bool:
        """Whether all decode steps with equally many tokens launch the same kernels."""

    def cut(self, num_layers: int) -> "LanguageModel":
        """Return a model of the first layers only, with the same weights."""


class Layer(Protocol):
    @property
    def products(self) -> Sequence[Product]:
        """Linears in the order in which a step runs them, used to measure how long they take by themselves."""

    def __call__(self, x: Residual, turn: Any, inputs: Inputs, cache: Cache, attention: Attention) -> None:
        """Add the layer's outputs to `x`, `[tokens, hidden]`. `turn` is the result of `Positions.at` for the step."""


class Embeds(Protocol):
    def __call__(self, inputs: Inputs) -> Tensor:
        """Return the tokens' embeddings, `[tokens, hidden]`, as a new tensor."""


class Positions(Protocol):
    def at(self, positions: Tensor) -> Any:
        """Return the position embedding of a step, which its layers apply."""


class Unturned:
    """Positions of models whose queries and keys do not depend on them."""

    def at(self, positions: Tensor) -> NoTurn:  # noqa: ARG002 - signature of `Positions`
        return NoTurn()


@dataclass(frozen=True, slots=True)
class Source(Generic[Config_co]):
    """Checkpoint that a model is read from, and the rank that reads its part."""

    config: Config_co
    weights: Weights
    group: Group
    prefix: str = "model"  # prefix of all tensor names but the head's

    @property
    def heads(self) -> range:
        return share(self.config.num_heads, self.group.rank, self.group.size)

    @property
    def kv_heads(self) -> range:
        return copied_share(self.config.num_kv_heads, self.group.rank, self.group.size)

    @property
    def intermediate(self) -> range:
        """This rank's slice of the MLP's inner width. Sizes differ between ranks if it does not divide evenly."""
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
        """Return the hidden states after the last norm, `[tokens, hidden]`."""
        x = Residual(self.embedding(inputs))
        turn = self.positions.at(inputs.positions)
        for layer in self.layers:
            layer(x, turn, inputs, cache, attention)
        return x.normed(self.norm)

    def logits(self, hidden: Tensor) -> Tensor | None:
        """Map `[rows, hidden]` to float32 logits, `[rows, vocabulary]`, on rank 0; return None on other ranks."""
        return self.head(hidden)

    def cut(self, num_layers: int) -> "Decoder":
        """Return a decoder of the first layers only, with the same weights."""
        return replace(self, layers=self.layers[:num_layers])


def one_of_each(layers: Iterable[Sequence[Product]]) -> int:
    """Return the smallest number of first layers that include every kind of layer.

    Layers are of one kind if their linears agree in number, type and input width.
    """
    kinds = [[(type(product), width) for product, width in layer] for layer in layers]
    return 1 + max(kinds.index(kind) for kind in kinds)


def read_ends(source: Source[Any], embedding: str, head: str) -> tuple[Embedding, Head]:
    """Read embedding and head by the names of their tensors.

    They are read before the layers, because memory holds a head twice while it is packed.
    """
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
    """Read a decoder whose tensors are named as in Llama."""
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
