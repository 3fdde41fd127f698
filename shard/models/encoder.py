"""BERT-style text encoders: learned positions, post-norm attention and MLP, bidirectional attention.

Models for token classification have a classifier, for the probabilities of labels of each token. Written as for one
device: tensor parallelism is in the linears.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shard.attention.encoder import attend
from shard.attention.span import integers
from shard.json_config import Given
from shard.layers.embedding import Embedding
from shard.layers.parallel_linear import Part, column_linear, row_linear
from shard.models.decoder import Source, check_ranks
from shard.models.gpt import GptConfig, Mlp
from shard.models.llama import widened
from shard.ops.linear import Linear, make_linear
from shard.ops.norm import LayerNorm, Norm
from shard.state.columns import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(GptConfig):
    num_types: int = 0  # token types with an embedding; only the first is used
    padding: int | None = None  # id of the padding token; positions of other tokens begin at this number plus one
    labels: tuple[str, ...] = ()  # of token classification; empty: the model has no classifier

    @property
    def first_position(self) -> int:
        return 0 if self.padding is None else self.padding + 1

    def positions(self, tokens: Sequence[int]) -> list[int]:
        """Return the positions of a text's tokens."""
        if self.padding is None or self.padding not in tokens:
            return list(range(self.first_position, self.first_position + len(tokens)))
        places, place = [], self.padding
        for token in tokens:
            place += token != self.padding
            places.append(self.padding if token == self.padding else place)
        return places


class Names(NamedTuple):
    """Name of a family's list of layers, and names of the modules within a layer."""

    layers: str
    queries: str
    keys: str
    values: str
    mixed: str  # output linear of attention
    attention_norm: str
    wide: str
    narrow: str
    norm: str


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Inputs of one forward pass: texts one after the other on the token axis."""

    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    lengths: list[int]  # of the texts


def lay_out(texts: Sequence[Text], config: EncoderConfig, device: torch.device) -> TextInputs:
    tokens = [token for text in texts for token in text.tokens]
    positions = [place for text in texts for place in config.positions(text.tokens)]
    columns = integers(tokens + positions).view(2, -1).to(device)  # [2, tokens]
    return TextInputs(columns[0], columns[1], [len(text.tokens) for text in texts])


class EncoderEmbedding:
    def __init__(self, source: Source[EncoderConfig], name: str) -> None:
        config, weights, hidden = source.config, source.weights, source.config.hidden_size
        self._words = Embedding(weights, source.group, f"{name}.word_embeddings.weight",
                                (config.vocabulary_size, hidden))
        self._places = weights.whole(f"{name}.position_embeddings.weight",
                                     (config.max_positions + config.first_position, hidden))
        self._type = weights.whole(f"{name}.token_type_embeddings.weight",
                                   (config.num_types, hidden))[0] if config.num_types else None
        self._norm = layer_norm(source, f"{name}.LayerNorm")
        weights.ignore(f"{name}.position_ids")  # older files have it, and it follows from the config

    def __call__(self, inputs: TextInputs) -> Tensor:
        """`[tokens, hidden]`"""
        x = self._words.rows(inputs.tokens)
        if self._type is not None:
            x += self._type
        return self._norm(x.add_(self._places.index_select(0, inputs.positions)))


class EncoderLayer:
    def __init__(self, source: Source[EncoderConfig], name: str, names: Names) -> None:
        config, hidden = source.config, source.config.hidden_size
        mine = widened(source.heads, config.head_dim)
        self._head_dim = config.head_dim
        self._qkv = column_linear(source.weights, [
            Part(f"{name}.{part}", (hidden, hidden), mine, bias=True)
            for part in (names.queries, names.keys, names.values)])
        self._mixed = row_linear(source.weights, source.group, f"{name}.{names.mixed}", (hidden, hidden), mine,
                                 bias=True)
        self._attention_norm = layer_norm(source, f"{name}.{names.attention_norm}")
        self._mlp = Mlp(source, f"{name}.{names.wide}", f"{name}.{names.narrow}", bias=True)
        self._norm = layer_norm(source, f"{name}.{names.norm}")

    def __call__(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """`x: [tokens, hidden]`, added to in place"""
        qkv = self._qkv(x).view(len(x), 3, -1, self._head_dim)  # [tokens, 3, heads, head_dim]
        x = self._attention_norm(x.add_(self._mixed(attend(qkv, lengths))))
        return self._norm(x.add_(self._mlp(x)))


@dataclass(frozen=True, slots=True)
class Encoder:
    config: EncoderConfig
    embedding: Callable[[TextInputs], Tensor]
    layers: Sequence[EncoderLayer]
    classifier: Linear | None

    def hidden(self, inputs: TextInputs) -> Tensor:
        """Return the hidden states after the last norm, `[tokens, hidden]`."""
        x = self.embedding(inputs)
        for layer in self.layers:
            x = layer(x, inputs.lengths)
        return x

    def probabilities(self, hidden: Tensor) -> Tensor:
        """Map `[tokens, hidden]` to float32 probabilities of the labels, `[tokens, labels]`."""
        assert self.classifier is not None
        return self.classifier(hidden).float().softmax(-1)

    def cut(self, num_layers: int) -> "Encoder":
        """Return an encoder of the first layers only, with the same weights."""
        return replace(self, layers=self.layers[:num_layers])


def layer_norm(source: Source[EncoderConfig], name: str) -> Norm:
    """Read a layer norm. In old files its tensors are named gamma and beta."""
    weight, bias = ("weight", "bias") if source.weights.holds(f"{name}.weight") else ("gamma", "beta")
    shape = (source.config.hidden_size,)
    return LayerNorm(source.weights.whole(f"{name}.{weight}", shape), source.config.norm_epsilon,
                     source.weights.whole(f"{name}.{bias}", shape))


def read_encoder(source: Source[EncoderConfig], prefix: str, names: Names) -> Encoder:
    """Read an encoder. All tensor names but the classifier's begin with `prefix`, unless only the encoder was saved."""
    config, weights = source.config, source.weights
    check_ranks(config, source.group.size)
    before = prefix if weights.holds(f"{prefix}embeddings.word_embeddings.weight") else ""
    weights.ignore_all(f"{before}pooler.")
    embedding = EncoderEmbedding(source, f"{before}embeddings")
    layers = [EncoderLayer(source, f"{before}{names.layers}.{number}", names) for number in range(config.num_layers)]
    return Encoder(config, embedding, layers, read_classifier(source) if config.labels else None)


def read_classifier(source: Source[EncoderConfig]) -> Linear:
    """Read the classifier, whole on every rank because it is small."""
    shape = (len(source.config.labels), source.config.hidden_size)
    return make_linear(source.weights.whole("classifier.weight", shape),
                       source.weights.whole("classifier.bias", shape[:1]))


def labelled(given: Given, config: EncoderConfig) -> EncoderConfig:
    """Return a copy of the config with the labels of token classification."""
    names = given.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    numbers = {str(number) for number in range(len(names))}
    if not isinstance(names, dict) or set(names) != numbers:
        raise ValueError(f"{given.source}: id2label must name labels by numbers from 0 on, without a gap, got {names}")
    return replace(config, labels=tuple(str(names[str(number)]) for number in range(len(names))))
