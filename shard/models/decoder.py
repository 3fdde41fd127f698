"""One rank's part of a decoder: embedding, layers, norm and head. Models are written as for one device: tensor
parallelism is in the linears."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.kv_cache import KVCache
from shard.attention.model_inputs import ModelInputs
from shard.checkpoint.reader import CheckpointReader
from shard.layers.embedding import LMHead, VocabParallelEmbedding, load_lm_head
from shard.layers.rotary import RotaryConfig, RotaryTable
from shard.models.config import ModelConfig
from shard.ops.norm import Norm, ResidualStream, RMSNorm
from shard.ops.unquantized_linear import Linear
from shard.parallel.group import RankGroup, even_rank_range, replicated_rank_range, uneven_rank_range

SizedLinear = tuple[Linear, int]  # linear and its input width
TokenEmbedding = Callable[[ModelInputs], Tensor]  # to the tokens' embeddings, [tokens, hidden], as a new tensor
# From positions to the position embedding of a step, which its layers apply: `RotaryTable.select_positions`, or what
# takes its place where layers need several tables or none.
SelectPositions = Callable[[Tensor], Any]
Config_co = TypeVar("Config_co", bound=ModelConfig, covariant=True)


class RunnableModel(Protocol):
    """The part of a model that steps use."""

    @abstractmethod
    def forward(self, inputs: ModelInputs, cache: KVCache, attention: AttentionBackend) -> Tensor:
        """Return the hidden states after the last norm, `[tokens, hidden]`."""

    @abstractmethod
    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Map `[rows, hidden]` to float32 logits, `[rows, vocabulary]`, on rank 0; return None on other ranks."""


class BaseLanguageModel(RunnableModel, ABC):
    """One rank's part of a model: a `Decoder`, or a `FallbackModel` made of modules of transformers."""

    config: ModelConfig
    num_kv_heads: int  # of this rank
    is_capturable: bool  # whether all decode steps with equally many tokens launch the same kernels

    @property
    @abstractmethod
    def layer_linears(self) -> list[list[SizedLinear]]:
        """Linears of each layer, each with its input width."""

    @abstractmethod
    def copy_first_layers(self, num_layers: int) -> "BaseLanguageModel":
        """Return a model of the first layers only, with the same weights."""

    @property
    def num_layers(self) -> int:
        return len(self.layer_linears)

    @property
    def head_dim(self) -> int:
        return self.config.head_dim

    @property
    def num_representative_layers(self) -> int:
        """Smallest number of first layers that include every kind of layer. Layers are of one kind if their linears
        agree in number, type and input width."""
        kinds = [[(type(linear), width) for linear, width in linears] for linears in self.layer_linears]
        return 1 + max(kinds.index(kind) for kind in kinds)


class LayerInputs(NamedTuple):
    """Inputs of a step's layers beside their hidden states."""

    inputs: ModelInputs
    cache: KVCache
    attention: AttentionBackend
    rotary: Any  # the position embedding that `Decoder.select_positions` returns


class DecoderLayer(Protocol):
    """Interface of a decoder's layers."""

    @property
    def linears(self) -> list[SizedLinear]:
        """Linears in the order in which a step runs them, used to measure how long they take by themselves."""

    def __call__(self, x: ResidualStream, context: LayerInputs) -> None:
        """Add the layer's outputs to `x`, `[tokens, hidden]`."""


@dataclass(frozen=True, slots=True)
class ModelLoader(Generic[Config_co]):
    """Loader of one rank's part of a model: its config, the checkpoint, and the group of ranks that share the model."""

    config: Config_co
    weights: CheckpointReader
    group: RankGroup
    prefix: str = "model"  # prefix of all tensor names but the head's

    @property
    def head_range(self) -> range:
        return even_rank_range(self.config.num_heads, self.group.rank, self.group.size)

    @property
    def kv_head_range(self) -> range:
        return replicated_rank_range(self.config.num_kv_heads, self.group.rank, self.group.size)

    @property
    def intermediate_range(self) -> range:
        """This rank's slice of the MLP's inner width. Sizes differ between ranks if it does not divide evenly."""
        return uneven_rank_range(self.config.intermediate_size, self.group.rank, self.group.size)

    def make_rotary_table(self, rotary_config: RotaryConfig | None = None) -> RotaryTable:
        """Return the table of `rotary_config`, by default the model's."""
        used_config = rotary_config or self.config.rotary
        assert used_config is not None
        return RotaryTable(used_config, self.config.head_dim, self.config.max_positions, self.weights.device)

    def load_norm(self, name: str) -> Norm:
        return RMSNorm(self.read_norm_weight(name), self.config.norm_epsilon)

    def read_norm_weight(self, name: str, tensor: str = "weight") -> Tensor:
        return self.weights.read_tensor(f"{name}.{tensor}", (self.config.hidden_size,))


NormLoader = Callable[[ModelLoader[Any], str], Norm]


class DecoderNames(NamedTuple):
    """Names of a decoder's modules beside its layers. All but the head's follow the prefix."""

    embedding: str
    norm: str
    head: str = "lm_head"


LLAMA_NAMES = DecoderNames("embed_tokens", "norm")


@dataclass(frozen=True)
class Decoder(BaseLanguageModel):
    """One rank's part of a decoder-only language model."""

    config: ModelConfig
    num_kv_heads: int
    embedding: TokenEmbedding
    select_positions: SelectPositions
    layers: Sequence[DecoderLayer]
    norm: Norm
    head: LMHead
    is_capturable: bool = True

    @property
    def layer_linears(self) -> list[list[SizedLinear]]:
        return [layer.linears for layer in self.layers]

    def forward(self, inputs: ModelInputs, cache: KVCache, attention: AttentionBackend) -> Tensor:
        return self.run_layers(self.embedding(inputs), inputs, cache, attention)

    def run_layers(self, embeddings: Tensor, inputs: ModelInputs, cache: KVCache,
                   attention: AttentionBackend) -> Tensor:
        """Return the hidden states after the last norm. `embeddings: [tokens, hidden]` is written to."""
        x = ResidualStream(embeddings)
        context = LayerInputs(inputs, cache, attention, self.select_positions(inputs.positions))
        for layer in self.layers:
            layer(x, context)
        return x.apply_pending_and_norm(self.norm)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        return self.head(hidden_states)

    def copy_first_layers(self, num_layers: int) -> "Decoder":
        return replace(self, layers=self.layers[:num_layers])


def load_decoder(source: ModelLoader[Any], load_layer: Callable[[ModelLoader[Any], int], DecoderLayer],
                 load_norm: NormLoader = ModelLoader.load_norm, *, names: DecoderNames = LLAMA_NAMES,
                 select_positions: SelectPositions | None = None) -> Decoder:
    """Load a decoder. `select_positions`: by default that of the rotary embedding in the config."""
    config, weights, group, prefix = source.config, source.weights, source.group, f"{source.prefix}."
    check_attention_head_split(config, group.size)
    if weights.has_tensor(f"{names.embedding}.weight"):  # saved without the head
        weights.add_name_prefix(prefix, names.head)
    # Embedding and head come before the layers, because memory holds a head twice while it is packed.
    shape, head_name = (config.vocabulary_size, config.hidden_size), f"{names.head}.weight"
    embedding = VocabParallelEmbedding(weights, group, f"{prefix}{names.embedding}.weight", shape)
    if config.tie_word_embeddings:
        weights.ignore_tensor(head_name)
    head = load_lm_head(weights, group, head_name, shape, embedding if config.tie_word_embeddings else None)
    layers = [load_layer(source, number) for number in range(config.num_layers)]
    return Decoder(config, len(source.kv_head_range), embedding,
                   select_positions or source.make_rotary_table().select_positions, layers,
                   load_norm(source, f"{prefix}{names.norm}"), head)


def check_attention_head_split(config: ModelConfig, world_size: int) -> None:
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    if num_heads % world_size or (num_kv_heads % world_size and world_size % num_kv_heads):
        raise ValueError(
            f"{world_size} shards cannot share {num_heads} attention heads with {num_kv_heads} key/value heads; "
            f"choose a --num-shard that divides both, or divides the first and is a multiple of the other")
