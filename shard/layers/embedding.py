"""Vocabulary-parallel embedding and head.

Every rank has equally many ids; those past the end of the vocabulary are zeros, and cut off from the logits.
"""

from collections.abc import Callable

from torch import Tensor

from shard.adapters.weight_slices import Portion
from shard.attention.inputs import Inputs
from shard.checkpoint.reader import COMPUTED, Weights
from shard.ops.linear import Linear, make_linear, packs
from shard.parallel.group import Group, padded_share

Finish = Callable[[Tensor], Tensor]  # [rows, vocabulary] in float32, may be written to


class Embedding:
    def __init__(self, weights: Weights, group: Group, name: str, shape: tuple[int, int]) -> None:
        """`shape: [vocabulary, hidden]`, of all ranks together. The weight keeps its stored dtype if that is smaller
        than the compute dtype."""
        self._group = group
        self.ids = padded_share(shape[0], group.rank, group.size)
        self._dtype = weights.dtype
        stored = weights.dtype_of(name)
        smaller = stored in COMPUTED.values() and stored.itemsize < weights.dtype.itemsize
        self.weight = weights.rows(name, shape, self.ids, stored if smaller else None)  # [ids, hidden]
        self._site = weights.sites.embedding(name.removesuffix(".weight"), shape)

    def __call__(self, inputs: Inputs) -> Tensor:
        """`[tokens, hidden]`"""
        return self.rows(inputs.tokens)

    def rows(self, tokens: Tensor) -> Tensor:
        """`[tokens] -> [tokens, hidden]`"""
        rows = self._summed(tokens)
        return rows if self._site is None else self._site.changed(tokens, rows)

    def _summed(self, tokens: Tensor) -> Tensor:
        if self._group.size == 1:
            return self.weight.index_select(0, tokens).to(self._dtype)
        places = tokens - self.ids.start
        mine = (places >= 0) & (places < len(self.ids))
        rows = self.weight.index_select(0, places.where(mine, 0)).to(self._dtype)
        return self._group.sum(rows.where(mine.unsqueeze(1), 0))


class PlacedEmbedding:
    """Sum of token embedding and learned position embedding."""

    def __init__(self, embedding: Embedding, positions: Tensor) -> None:
        """`positions: [positions, hidden]`"""
        self._embedding = embedding
        self._positions = positions

    def __call__(self, inputs: Inputs) -> Tensor:
        """`[tokens, hidden]`"""
        return self._embedding(inputs).add_(self._positions.index_select(0, inputs.positions))


class Head:
    def __init__(self, linear: Linear, group: Group, vocabulary_size: int, finish: Finish | None = None) -> None:
        """`linear` returns the logits of this rank's ids; `finish` is applied to the gathered logits."""
        self._linear = linear
        self._group = group
        self._vocabulary_size = vocabulary_size
        self._finish = finish

    def finished(self, finish: Finish) -> "Head":
        """Return a copy that applies `finish` to the logits."""
        return Head(self._linear, self._group, self._vocabulary_size, finish)

    def __call__(self, hidden: Tensor) -> Tensor | None:
        """`[rows, hidden] -> [rows, vocabulary]`, on rank 0 only"""
        logits = self._group.gather(self._linear(hidden))
        if logits is None:
            return None
        wide = logits[:, :self._vocabulary_size].float()
        return wide if self._finish is None else self._finish(wide)


def read_head(weights: Weights, group: Group, name: str, shape: tuple[int, int], weight_name: str = "") -> Head:
    """Read the head `name`. `weight_name`: name of its weight in the files, if different."""
    ids = padded_share(shape[0], group.rank, group.size)
    weight = weights.rows(weight_name or name, shape, ids, brief=packs(weights.dtype, weights.device))
    return make_head(weights, group, name, shape, ids=ids, weight=weight)


def make_head(weights: Weights, group: Group, name: str, shape: tuple[int, int], *, ids: range, weight: Tensor) -> Head:
    portion = Portion(name.removesuffix(".weight"), shape, ids, range(shape[1]))
    return Head(weights.sites.head(make_linear(weight), portion), group, shape[0])


def tied_head(weights: Weights, group: Group, names: tuple[str, str], shape: tuple[int, int],
              embedding: Embedding) -> Head:
    """Return a head with the embedding's weight. `names`: of the head and of the embedding.

    The weight is shared if the embedding has the compute dtype; a packed linear copies it.
    """
    if embedding.weight.dtype != weights.dtype:
        return read_head(weights, group, names[0], shape, names[1])
    return make_head(weights, group, names[0], shape, ids=embedding.ids, weight=embedding.weight)
