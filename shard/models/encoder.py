"""BERT-style text encoders: learned positions, post-norm attention and MLP, bidirectional attention.
Models for token classification have a classifier, for the probabilities of labels of each token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shard.attention.encoder import bidirectional_attention
from shard.attention.kv_cache import make_int64_tensor
from shard.json_config import JsonConfig
from shard.layers.embedding import VocabParallelEmbedding
from shard.layers.parallel_linear import LinearRows, load_column_parallel_linear, load_row_parallel_linear
from shard.models.decoder import ModelLoader, check_attention_head_split
from shard.models.decoder_layers import compute_head_rows
from shard.models.gpt_layers import GeluMlp, GptConfig
from shard.ops.norm import LayerNorm, Norm
from shard.ops.unquantized_linear import Linear, make_linear
from shard.state.sequence import PoolingText


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(GptConfig):
    num_token_types: int = 0  # token types with an embedding; only the first is used
    padding_id: int | None = None  # id of the padding token; positions of other tokens begin at this number plus one
    labels: tuple[str, ...] = ()  # of token classification; empty: the model has no classifier

    @property
    def first_position(self) -> int:
        return 0 if self.padding_id is None else self.padding_id + 1

    def compute_positions(self, tokens: Sequence[int]) -> list[int]:
        """Return the positions of a text's tokens."""
        if self.padding_id is None or self.padding_id not in tokens:
            return list(range(self.first_position, self.first_position + len(tokens)))
        token_positions, position = [], self.padding_id
        for token in tokens:
            position += token != self.padding_id
            token_positions.append(self.padding_id if token == self.padding_id else position)
        return token_positions


class EncoderModuleNames(NamedTuple):
    """Name of a family's list of layers, and names of the modules within a layer."""

    layers: str
    queries: str
    keys: str
    values: str
    attention_output: str  # output linear of attention
    attention_norm: str
    mlp_up: str
    mlp_down: str
    output_norm: str


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """Inputs of one forward pass: texts one after the other on the token axis."""

    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    text_lengths: list[int]  # of the texts


def build_encoder_inputs(texts: Sequence[PoolingText], config: EncoderConfig, device: torch.device) -> EncoderInputs:
    tokens = [token for text in texts for token in text.tokens]
    positions = [place for text in texts for place in config.compute_positions(text.tokens)]
    columns = make_int64_tensor(tokens + positions).view(2, -1).to(device)  # [2, tokens]
    return EncoderInputs(columns[0], columns[1], [len(text.tokens) for text in texts])


class EncoderEmbedding:
    """Sum of word, position and token type embeddings, and a norm."""

    def __init__(self, source: ModelLoader[EncoderConfig], name: str) -> None:
        config, weights, hidden = source.config, source.weights, source.config.hidden_size
        self._word_embedding = VocabParallelEmbedding(weights, source.group, f"{name}.word_embeddings.weight",
                                                      (config.vocabulary_size, hidden))
        self._position_embedding = weights.read_tensor(f"{name}.position_embeddings.weight",
                                                       (config.max_positions + config.first_position, hidden))
        self._token_type_embedding = (
            weights.read_tensor(f"{name}.token_type_embeddings.weight", (config.num_token_types, hidden))[0]
            if config.num_token_types else None)
        self._norm = load_encoder_layer_norm(source, f"{name}.LayerNorm")
        weights.ignore_tensor(f"{name}.position_ids")  # older files have it, and it follows from the config

    def __call__(self, inputs: EncoderInputs) -> Tensor:
        """`[tokens, hidden]`"""
        x = self._word_embedding.embed_tokens(inputs.tokens)
        if self._token_type_embedding is not None:
            x += self._token_type_embedding
        return self._norm(x.add_(self._position_embedding.index_select(0, inputs.positions)))


class EncoderLayer:
    """Encoder layer: bidirectional attention and MLP, each followed by a norm."""

    def __init__(self, source: ModelLoader[EncoderConfig], name: str, module_names: EncoderModuleNames) -> None:
        config, hidden = source.config, source.config.hidden_size
        head_rows = compute_head_rows(source.head_range, config.head_dim)
        self._head_dim = config.head_dim
        self._qkv = load_column_parallel_linear(source.weights, [
            LinearRows(f"{name}.{part}", (hidden, hidden), head_rows, has_bias=True)
            for part in (module_names.queries, module_names.keys, module_names.values)])
        self._attention_output = load_row_parallel_linear(source.weights, source.group,
                                                          f"{name}.{module_names.attention_output}", (hidden, hidden),
                                                          head_rows, bias=True)
        self._attention_norm = load_encoder_layer_norm(source, f"{name}.{module_names.attention_norm}")
        self._mlp = GeluMlp(source, f"{name}.{module_names.mlp_up}", f"{name}.{module_names.mlp_down}")
        self._output_norm = load_encoder_layer_norm(source, f"{name}.{module_names.output_norm}")

    def __call__(self, x: Tensor, text_lengths: Sequence[int]) -> Tensor:
        """`x: [tokens, hidden]`, added to in place"""
        qkv = self._qkv(x).view(len(x), 3, -1, self._head_dim)  # [tokens, 3, heads, head_dim]
        x = self._attention_norm(x.add_(self._attention_output(bidirectional_attention(qkv, text_lengths))))
        return self._output_norm(x.add_(self._mlp(x)))


@dataclass(frozen=True, slots=True)
class Encoder:
    """One rank's part of a text encoder, with or without a token classifier."""

    config: EncoderConfig
    embedding: Callable[[EncoderInputs], Tensor]
    layers: Sequence[EncoderLayer]
    classifier: Linear | None

    def forward(self, inputs: EncoderInputs) -> Tensor:
        """Return the hidden states after the last norm, `[tokens, hidden]`."""
        x = self.embedding(inputs)
        for layer in self.layers:
            x = layer(x, inputs.text_lengths)
        return x

    def classify_tokens(self, hidden_states: Tensor) -> Tensor:
        """Map `[tokens, hidden]` to float32 probabilities of the labels, `[tokens, labels]`."""
        assert self.classifier is not None
        return self.classifier(hidden_states).float().softmax(-1)

    def copy_first_layers(self, num_layers: int) -> "Encoder":
        """Return an encoder of the first layers only, with the same weights."""
        return replace(self, layers=self.layers[:num_layers])


def load_encoder_layer_norm(source: ModelLoader[EncoderConfig], name: str) -> Norm:
    """Load a layer norm. In old files its tensors are named gamma and beta."""
    weight, bias = ("weight", "bias") if source.weights.has_tensor(f"{name}.weight") else ("gamma", "beta")
    shape = (source.config.hidden_size,)
    return LayerNorm(source.weights.read_tensor(f"{name}.{weight}", shape), source.config.norm_epsilon,
                     source.weights.read_tensor(f"{name}.{bias}", shape))


def load_bert_encoder(source: ModelLoader[EncoderConfig], prefix: str, module_names: EncoderModuleNames) -> Encoder:
    """Load an encoder. All tensor names but the classifier's begin with `prefix`, unless only the encoder was saved."""
    config, weights = source.config, source.weights
    check_attention_head_split(config, source.group.size)
    found_prefix = prefix if weights.has_tensor(f"{prefix}embeddings.word_embeddings.weight") else ""
    weights.ignore_prefix(f"{found_prefix}pooler.")
    embedding = EncoderEmbedding(source, f"{found_prefix}embeddings")
    layers = [EncoderLayer(source, f"{found_prefix}{module_names.layers}.{number}", module_names)
              for number in range(config.num_layers)]
    shape = (len(config.labels), config.hidden_size)
    classifier = make_linear(  # whole on every rank because it is small
        weights.read_tensor("classifier.weight", shape),
        weights.read_tensor("classifier.bias", shape[:1])) if config.labels else None
    return Encoder(config, embedding, layers, classifier)


def parse_labels(hf_config: JsonConfig) -> tuple[str, ...]:
    """Return the labels of token classification; none if the architecture has no classifier."""
    if not hf_config.get("architectures")[0].endswith("ForTokenClassification"):
        return ()
    names = hf_config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    numbers = {str(number) for number in range(len(names))}
    if not isinstance(names, dict) or set(names) != numbers:
        raise ValueError(
            f"{hf_config.source}: id2label must name labels by numbers from 0 on, without a gap, got {names}")
    return tuple(str(names[str(number)]) for number in range(len(names)))
