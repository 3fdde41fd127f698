"""Vocabulary-parallel embedding and head.

Every rank has equally many ids; those past the end of the vocabulary are zeros, and cut off from the logits. Their sum
and gather begin and end a step: docs/concepts/exactness.md, "Collectives of a step".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shard.attention.model_inputs import ModelInputs
from shard.checkpoint.reader import COMPUTE_DTYPES, CheckpointReader
from shard.layers.parallel_linear import make_float_linear
from shard.native.library import load_library
from shard.ops.native_int8_linear import AmxInt8Linear, NativeInt8Linear, make_int8_linear
from shard.ops.unquantized_linear import Linear, make_linear
from shard.parallel.group import RankGroup, padded_rank_range
from shard.quantization.quantization_format import MatrixSlice

LogitsTransform = Callable[[Tensor], Tensor]  # [rows, vocabulary] in float32, may be written to


class VocabParallelEmbedding:
    """Token embedding of which each rank holds a range of ids."""

    def __init__(self, weights: CheckpointReader, group: RankGroup, name: str, shape: tuple[int, int]) -> None:
        """`shape: [vocabulary, hidden]`, of all ranks together. The weight keeps its stored dtype if that is smaller
        than the compute dtype."""
        self.name = name  # of the weight
        self._group = group
        self.id_range = padded_rank_range(shape[0], group.rank, group.size)
        self._dtype = weights.dtype
        stored = weights.stored_dtype(name)
        smaller = stored in COMPUTE_DTYPES.values() and stored.itemsize < weights.dtype.itemsize
        self.weight = weights.read_rows(name, shape, self.id_range, stored if smaller else None)  # [ids, hidden]
        self._lora_target = weights.lora_targets.add_embedding(name.removesuffix(".weight"), shape)

    def __call__(self, inputs: ModelInputs) -> Tensor:
        """`[tokens, hidden_size]`"""
        return self.embed_tokens(inputs.tokens)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """`[tokens] -> [tokens, hidden]`"""
        if self._group.size == 1:
            rows = self.weight.index_select(0, tokens).to(self._dtype)
        else:
            local_ids = tokens - self.id_range.start
            is_local = (local_ids >= 0) & (local_ids < len(self.id_range))
            local_rows = self.weight.index_select(0, local_ids.where(is_local, 0)).to(self._dtype)
            rows = self._group.all_reduce_sum(local_rows.where(is_local.unsqueeze(1), 0))
        return rows if self._lora_target is None else self._lora_target.apply_adapters(tokens, rows)


@dataclass(frozen=True, slots=True)
class PositionedEmbedding:
    """Sum of token embedding and learned position embedding."""

    token_embedding: Callable[[ModelInputs], Tensor]
    position_weight: Tensor  # [positions, hidden]

    def __call__(self, inputs: ModelInputs) -> Tensor:
        """`[tokens, hidden_size]`"""
        return self.token_embedding(inputs).add_(self.position_weight.index_select(0, inputs.positions))


@dataclass(frozen=True, slots=True)
class LMHead:
    """Output head of which each rank holds a range of ids; rank 0 gathers the logits."""

    linear: Linear  # returns the logits of this rank's ids
    group: RankGroup
    vocabulary_size: int
    logits_transform: LogitsTransform | None = None  # applied to the gathered logits

    def with_logits_transform(self, logits_transform: LogitsTransform) -> "LMHead":
        """Return a copy that applies `logits_transform` to the logits."""
        return replace(self, logits_transform=logits_transform)

    def __call__(self, hidden_states: Tensor) -> Tensor | None:
        """`[rows, hidden] -> [rows, vocabulary]`, on rank 0 only"""
        logits = self.group.gather(self.linear(hidden_states))
        if logits is None:
            return None
        wide = logits[:, :self.vocabulary_size].float()
        return wide if self.logits_transform is None else self.logits_transform(wide)


def load_lm_head(weights: CheckpointReader, group: RankGroup, name: str, shape: tuple[int, int],
                 tied_embedding: VocabParallelEmbedding | None = None) -> LMHead:
    """Load the head `name`. `tied_embedding`: embedding whose weight is the head's, too."""
    id_range = padded_rank_range(shape[0], group.rank, group.size)
    head_slice = MatrixSlice(name, shape, id_range, range(shape[1]))
    stored_slice = head_slice if tied_embedding is None else replace(head_slice, weight_name=tied_embedding.name)
    linear: Linear | None = load_int8_head(weights, stored_slice)
    if linear is None:
        linear = load_float_head(weights, stored_slice, tied_embedding)
    return LMHead(weights.lora_targets.wrap_linear(linear, [head_slice], is_head=True), group, shape[0])


def load_int8_head(weights: CheckpointReader, stored_slice: MatrixSlice) -> NativeInt8Linear | AmxInt8Linear | None:
    """Return the head with int8 weights; None if it is not to be quantized, or if there are no compiled kernels."""
    library = load_library() if weights.device.type == "cpu" else None
    quantized_slice = None if library is None else weights.quantize_head_to_int8(stored_slice)
    return (None if library is None or quantized_slice is None
            else make_int8_linear([quantized_slice], None, weights.dtype, library))


def load_float_head(weights: CheckpointReader, stored_slice: MatrixSlice,
                    tied_embedding: VocabParallelEmbedding | None) -> Linear:
    """Return the head with its own weights. Those of the tied embedding are shared if they have the compute dtype; a
    packed linear copies them."""
    name = stored_slice.weight_name
    if tied_embedding is not None and tied_embedding.weight.dtype == weights.dtype:
        return make_linear(tied_embedding.weight)

    def read_weight(dtype: torch.dtype | None, *, scratch: bool) -> Tensor:
        if tied_embedding is not None and tied_embedding.weight.dtype == dtype:
            return tied_embedding.weight
        return weights.read_rows(name, stored_slice.shape, stored_slice.rows, dtype, scratch=scratch)

    return make_float_linear(weights, [name], read_weight)
