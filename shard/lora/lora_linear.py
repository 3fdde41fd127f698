"""Linears with adapters: a row's adapter adds a low-rank update or replaces the whole weight."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shard.lora.fused_linear_parts import WeightSlice, group_slices_into_parts
from shard.lora.lora_torch import TorchLoraStore
from shard.lora.routing import AdapterRouting
from shard.lora.slot_assignment import AdapterSlot
from shard.ops.linear import Linear
from shard.ops.triton_support import import_kernels


class LinearLoraStore(Protocol):
    """LoRA matrices of all adapters for one linear: `lora_a: [rank, in]` and `lora_b: [out, rank]` for each of its
    parts."""

    is_capturable: bool  # whether the kernels launched do not depend on which adapters the rows have

    def store_adapter(self, slot: AdapterSlot, part_index: int, lora_a: Tensor, lora_b: Tensor) -> int:
        """Store an adapter's matrices before any row uses them. Return their size in bytes."""

    def clear_slot(self, slot: AdapterSlot) -> None:
        """Remove the matrices of a slot that no row uses any more."""

    def add_updates_to_output(self, x: Tensor, y: Tensor) -> None:
        """Add the updates of the current rows' adapters to `y`, the linear's output for `x`."""


class LinearLoraTarget:
    """Updates and replacements of one linear by all loaded adapters."""

    def __init__(self, adapter_routing: AdapterRouting, weight_slices: Sequence[WeightSlice], dtype: torch.dtype,
                 device: torch.device) -> None:
        self.parts = group_slices_into_parts(weight_slices)
        triton_module = import_kernels(device, "shard.lora.lora_triton")
        self.lora_weights: LinearLoraStore = (TorchLoraStore if triton_module is None
                                          else triton_module.TritonLoraStore)(adapter_routing, self.parts,
                                                                                dtype, device)
        self._adapter_routing = adapter_routing
        self._replacements: dict[int, Linear] = {}

    def set_replacement(self, adapter: int, linear: Linear) -> None:
        """Use `linear` instead of the model's for rows of this adapter."""
        self._replacements[adapter] = linear

    def remove_replacement(self, adapter: int) -> None:
        self._replacements.pop(adapter, None)

    def apply_adapters(self, x: Tensor, y: Tensor) -> Tensor:
        """Apply the rows' adapters to `y`, the linear's output for `x`, in place and return it."""
        self.lora_weights.add_updates_to_output(x, y)
        if self._replacements:
            for adapter_rows in self._adapter_routing.adapter_rows:
                if (replacement := self._replacements.get(adapter_rows.adapter)) is not None:
                    y.index_copy_(0, adapter_rows.rows, replacement(x.index_select(0, adapter_rows.rows)))
        return y


class LinearWithAdapters:
    """Linear that applies the rows' adapters to its output."""

    def __init__(self, linear: Linear, lora_target: LinearLoraTarget) -> None:
        self._linear = linear
        self._lora_target = lora_target

    def __call__(self, x: Tensor) -> Tensor:
        return self._lora_target.apply_adapters(x, self._linear(x))
