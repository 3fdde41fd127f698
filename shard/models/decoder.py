"""A language model as one rank has it: embedding, layers, norm, head. Knows nothing of what a layer does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from shard.attention.backends import Attention
from shard.cache import Cache
from shard.distributed import Group, copied_share, share
from shard.layers.embedding import Embedding, Head, read_head, tied_head
from shard.layers.linear import Linear
from shard.layers.norm import RMSNorm
from shard.layers.rotary import RotaryTable, Turn
from shard.models.config import ModelConfig
from shard.step import Inputs
from shard.weights import Weights

Product = tuple[Linear, int]  # and the width that it takes


class Layer(Protocol):
    @property
    def products(self) -> Sequence[Product]:
        """In the order of a step, for who measures what they take alone."""

    def __call__(self, x: Tensor, turn: Turn, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """`[tokens, hidden]` in and out; `x` may be written to"""


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint, and whose part of it is wanted."""

    config: ModelConfig
    weights: Weights
    group: Group

    @property
    def heads(self) -> range:
        return share(self.config.num_heads, self.group.rank, self.group.size)

    @property
    def kv_heads(self) -> range:
        return copied_share(self.config.num_kv_heads, self.group.rank, self.group.size)

    @property
    def intermediate(self) -> range:
        """Not the same number on every rank where it does not go even."""
        size, rank, ranks = self.config.intermediate_size, self.group.rank, self.group.size
        return range(size * rank // ranks, size * (rank + 1) // ranks)

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.weights.whole(f"{name}.weight", (self.config.hidden_size,)), self.config.norm_epsilon)


@dataclass(frozen=True, slots=True)
class Decoder:
    config: ModelConfig
    num_kv_heads: int  # of this rank
    embedding: Embedding
    rotary: RotaryTable
    layers: Sequence[Layer]
    norm: RMSNorm
    head: Head

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def head_dim(self) -> int:
        return self.config.head_dim

    def hidden(self, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """`[tokens, hidden]`, after the last norm"""
        x = self.embedding(inputs.tokens)
        turn = self.rotary.at(inputs.positions)
        for layer in self.layers:
            x = layer(x, turn, inputs, cache, attention)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor | None:
        """`[rows, hidden] -> [rows, vocabulary]` in float32, on rank 0; on the others nothing"""
        return self.head(hidden)

    def cut(self, num_layers: int) -> "Decoder":
        """The first layers only, with the same weights."""
        return replace(self, layers=self.layers[:num_layers])


def read_decoder(source: Source, read_layer: Callable[[Source, int], Layer]) -> Decoder:
    """The head comes before the layers: while it is packed, memory holds it twice."""
    config, weights, group = source.config, source.weights, source.group
    check_ranks(config, group.size)
    shape = (config.vocabulary_size, config.hidden_size)
    embedding = Embedding(weights, group, "model.embed_tokens.weight", shape)
    if config.tied:
        weights.ignore("lm_head.weight")
        head = tied_head(weights, group, "model.embed_tokens.weight", shape, embedding)
    else:
        head = read_head(weights, group, "lm_head.weight", shape)
    return Decoder(
        config, len(source.kv_heads), embedding,
        RotaryTable(config.rotary, config.head_dim, config.max_positions, weights.device),
        [read_layer(source, number) for number in range(config.num_layers)], source.norm("model.norm"), head)


def check_ranks(config: ModelConfig, size: int) -> None:
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    if num_heads % size or (num_kv_heads % size and size % num_kv_heads):
        raise ValueError(f"{size} shards cannot share {num_heads} attention heads with {num_kv_heads} key/value heads; "
                         f"choose a --num-shard that divides both, or divides the first and is a multiple of the other")
