"""LoRA targets of a model: its linears, head and embedding."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shard.lora.lora_linear import LoraLinear
from shard.lora.routing import ROWS_PER_TILE, AdapterRouting
from shard.ops.unquantized_linear import Linear
from shard.quantization.quantization_format import MatrixSlice


class EmbeddingLoraTarget:
    """Embedding that adapters may change. Every rank holds the whole changes and applies them after the ranks' sum."""

    def __init__(self, adapter_routing: AdapterRouting, module: str, shape: tuple[int, int], dtype: torch.dtype,
                 device: torch.device) -> None:
        """`shape: [vocabulary, width]`"""
        self.module, self.shape = module, shape
        self._adapter_routing = adapter_routing
        self._dtype, self._device = dtype, device
        self._lora_matrices: dict[int, tuple[Tensor, Tensor]] = {}  # [vocabulary, rank] and [width, rank]
        self._replacements: dict[int, Tensor] = {}  # [vocabulary, width]

    def store_adapter(self, adapter: int, lora_a: Tensor, lora_b: Tensor) -> int:
        """Add the low-rank update and return its size in bytes. `lora_a` is [rank, vocabulary]; tokens index
        columns."""
        table, lora_b = lora_a.mT.to(self._device, self._dtype).contiguous(), lora_b.to(self._device, self._dtype)
        self._lora_matrices[adapter] = table, lora_b
        return table.nbytes + lora_b.nbytes

    def set_replacement(self, adapter: int, weight: Tensor) -> int:
        self._replacements[adapter] = weight.to(self._device, self._dtype)
        return self._replacements[adapter].nbytes

    def remove_adapter(self, adapter: int) -> None:
        self._lora_matrices.pop(adapter, None)
        self._replacements.pop(adapter, None)

    def apply_adapters(self, tokens: Tensor, y: Tensor) -> Tensor:
        """Apply the rows' adapters to `y`, the embeddings of the tokens, in place and return it."""
        for adapter, rows in self._adapter_routing.rows.adapter_rows:
            if (replacement := self._replacements.get(adapter)) is not None:
                y.index_copy_(0, rows, replacement.index_select(0, tokens.index_select(0, rows)).to(y.dtype))
            if (matrices := self._lora_matrices.get(adapter)) is not None:
                low = matrices[0].index_select(0, tokens.index_select(0, rows))
                y.index_add_(0, rows, multiply_in_tiles(low, matrices[1]).to(y.dtype))
        return y


def multiply_in_tiles(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply `rows`, [rows, in], with `matrix`, [out, in]: docs/concepts/exactness.md, "Tiles of one size"."""
    tiles = functional.pad(rows, (0, 0, 0, -len(rows) % ROWS_PER_TILE)).view(-1, ROWS_PER_TILE, rows.shape[1])
    return torch.bmm(tiles, matrix.mT.expand(len(tiles), -1, -1)).flatten(0, 1)[:len(rows)]


class LoraTargetLayers:
    """Linears, heads and embeddings that adapters may change, collected while the model is loaded."""

    def __init__(self, adapter_routing: AdapterRouting | None = None, dtype: torch.dtype = torch.float32,
                 device: torch.device | None = None) -> None:
        """Without `adapter_routing`, linears are not wrapped and adapters cost nothing. `dtype`: compute dtype of
        updates."""
        self.adapter_routing = adapter_routing
        self.linears: list[LoraLinear] = []
        self.heads: list[LoraLinear] = []
        self.embeddings: list[EmbeddingLoraTarget] = []
        self._dtype, self._device = dtype, device or torch.device("cpu")

    @property
    def is_enabled(self) -> bool:
        return self.adapter_routing is not None

    @property
    def linears_and_heads(self) -> list[LoraLinear]:
        return self.linears + self.heads

    def wrap_linear(self, linear: Linear, matrix_slices: Sequence[MatrixSlice], *, is_head: bool = False) -> Linear:
        if self.adapter_routing is None:
            return linear
        targets = self.heads if is_head else self.linears
        targets.append(LoraLinear(linear, self.adapter_routing, matrix_slices, self._dtype, self._device))
        return targets[-1]

    def add_embedding(self, module: str, shape: tuple[int, int]) -> EmbeddingLoraTarget | None:
        if self.adapter_routing is None:
            return None
        self.embeddings.append(EmbeddingLoraTarget(self.adapter_routing, module, shape, self._dtype, self._device))
        return self.embeddings[-1]
