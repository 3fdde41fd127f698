"""LoRA targets of a model: its linears, head and embedding.

Collected while the model is loaded, used when an adapter is loaded.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shard.adapters.lora_linear import AdaptedLinear, Site
from shard.adapters.routing import TILE, Bearers
from shard.adapters.weight_slices import Portion
from shard.ops.linear import Linear


class EmbeddingSite:
    """Embedding that adapters may change. Every rank holds the whole changes and applies them after the ranks' sum."""

    def __init__(self, bearers: Bearers, module: str, shape: tuple[int, int], dtype: torch.dtype,
                 device: torch.device) -> None:
        """`shape: [vocabulary, width]`"""
        self.module, self.shape = module, shape
        self._bearers = bearers
        self._dtype, self._device = dtype, device
        self._added: dict[int, tuple[Tensor, Tensor]] = {}  # [vocabulary, rank] and [width, rank]
        self._others: dict[int, Tensor] = {}  # [vocabulary, width]

    def add(self, adapter: int, down: Tensor, up: Tensor) -> int:
        """Add the low-rank update and return its size in bytes. `down` is [rank, vocabulary]; tokens index columns."""
        table, up = down.mT.to(self._device, self._dtype).contiguous(), up.to(self._device, self._dtype)
        self._added[adapter] = table, up
        return table.nbytes + up.nbytes

    def replace(self, adapter: int, weight: Tensor) -> int:
        self._others[adapter] = weight.to(self._device, self._dtype)
        return self._others[adapter].nbytes

    def restore(self, adapter: int) -> None:
        self._added.pop(adapter, None)
        self._others.pop(adapter, None)

    def changed(self, tokens: Tensor, y: Tensor) -> Tensor:
        """Apply the rows' adapters to `y`, the embeddings of the tokens, in place and return it."""
        for adapter, rows in self._bearers.bands:
            if (other := self._others.get(adapter)) is not None:
                y.index_copy_(0, rows, other.index_select(0, tokens.index_select(0, rows)).to(y.dtype))
            if (matrices := self._added.get(adapter)) is not None:
                low = matrices[0].index_select(0, tokens.index_select(0, rows))
                y.index_add_(0, rows, in_tiles(low, matrices[1]).to(y.dtype))
        return y


def in_tiles(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply `rows`, [rows, in], in tiles of TILE with `matrix`, [out, in]."""
    tiles = functional.pad(rows, (0, 0, 0, -len(rows) % TILE)).view(-1, TILE, rows.shape[1])
    return torch.bmm(tiles, matrix.mT.expand(len(tiles), -1, -1)).flatten(0, 1)[:len(rows)]


class Sites:
    def __init__(self, bearers: Bearers | None = None, dtype: torch.dtype = torch.float32,
                 device: torch.device | None = None) -> None:
        """Without `bearers`, linears are not wrapped and adapters cost nothing. `dtype`: compute dtype of updates."""
        self.bearers = bearers
        self.linears: list[Site] = []
        self.heads: list[Site] = []
        self.embeddings: list[EmbeddingSite] = []
        self._dtype, self._device = dtype, device or torch.device("cpu")

    @property
    def are_open(self) -> bool:
        return self.bearers is not None

    def linear(self, linear: Linear, portions: Sequence[Portion]) -> Linear:
        return self._adapted(linear, portions, self.linears)

    def head(self, linear: Linear, portion: Portion) -> Linear:
        return self._adapted(linear, [portion], self.heads)

    def embedding(self, module: str, shape: tuple[int, int]) -> EmbeddingSite | None:
        """`shape: [vocabulary, width]`"""
        if self.bearers is None:
            return None
        site = EmbeddingSite(self.bearers, module, shape, self._dtype, self._device)
        self.embeddings.append(site)
        return site

    def _adapted(self, linear: Linear, portions: Sequence[Portion], kind: list[Site]) -> Linear:
        if self.bearers is None:
            return linear
        site = Site(self.bearers, portions, self._dtype, self._device)
        kind.append(site)
        return AdaptedLinear(linear, site)
