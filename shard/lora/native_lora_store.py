"""LoRA matrices of all adapters for one linear, multiplied by the kernel of `shard/native/lora.c`.

It reads the adapter of each row, and the matrices of each adapter, from tables whose addresses never change. So a
recorded step serves any adapters, also those that are loaded later.
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shard.lora.routing import AdapterRouting, AdapterSlot
from shard.native.library import ACTIVATION_DTYPES, NativeLibrary, allocate_result

TABLE_ROWS = 65_536  # loaded adapters at most; the memory of those that are never loaded is never touched


class LoraPartArguments(ctypes.Structure):
    """`LoraPart` in lora.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("lora_a", "lora_b", "ranks")),
                          *((name, ctypes.c_int64) for name in ("first_output", "outputs"))]


class LoraUpdateArguments(ctypes.Structure):
    """`LoraUpdate` in lora.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("x", "y", "shrunk", "adapter_table_rows", "parts")),
                          *((name, ctypes.c_int64) for name in ("rows", "inputs", "num_parts", "max_rank",
                                                                "x_stride", "y_stride", "x_format", "y_format"))]


class PartTables:
    """Addresses and ranks of one part's matrices, by the table row of their adapter."""

    def __init__(self, output_columns: range) -> None:
        self.lora_a, self.lora_b, self.ranks = (np.zeros(TABLE_ROWS, dtype=np.int64) for _ in range(3))
        self.matrices: dict[int, tuple[Tensor, ...]] = {}  # which the addresses are of
        self.arguments = LoraPartArguments(self.lora_a.ctypes.data, self.lora_b.ctypes.data, self.ranks.ctypes.data,
                                           output_columns.start, len(output_columns))


class NativeLoraStore:
    """Implementation of `LinearLoraStore` on CPUs with compiled kernels."""

    is_capturable = False
    is_recordable = True

    def __init__(self, adapter_routing: AdapterRouting, parts: Sequence[range], library: NativeLibrary) -> None:
        """`parts`: the output columns of each part."""
        self._adapter_routing, self._library = adapter_routing, library
        self._tables = [PartTables(columns) for columns in parts]
        self._part_arguments = (LoraPartArguments * len(parts))(*(tables.arguments for tables in self._tables))

    def store_adapter(self, slot: AdapterSlot, part_index: int, lora_a: Tensor, lora_b: Tensor) -> int:
        tables, row = self._tables[part_index], slot.table_row
        if row >= TABLE_ROWS:
            raise RuntimeError(f"{TABLE_ROWS} adapters can be loaded at once; lower --max-active-adapters")
        matrices = tuple(matrix.to(torch.float32, copy=True).contiguous() for matrix in (lora_a, lora_b.T))
        tables.matrices[row] = matrices
        tables.ranks[row], tables.lora_b[row] = len(lora_a), matrices[1].data_ptr()
        tables.lora_a[row] = matrices[0].data_ptr()
        return matrices[0].nbytes + matrices[1].nbytes

    def clear_slot(self, slot: AdapterSlot) -> None:
        for tables in self._tables:
            tables.lora_a[slot.table_row] = 0
            tables.matrices.pop(slot.table_row, None)

    def add_updates_to_output(self, x: Tensor, y: Tensor) -> None:
        rows = self._adapter_routing.rows
        if not rows.may_have_lora_matrices:
            return
        if y.stride(-1) != 1 or not {x.dtype, y.dtype} <= {*ACTIVATION_DTYPES}:  # the kernel cannot tell
            raise ValueError(f"needs contiguous rows in float32 or bfloat16, got strides {y.stride()}, {x.dtype}, "
                             f"{y.dtype}")
        x = x if x.stride(-1) == 1 else x.contiguous()
        shrunk = allocate_result(len(x), len(self._tables), rows.max_rank)
        self._library.add_lora_update(LoraUpdateArguments(
            x.data_ptr(), y.data_ptr(), shrunk.data_ptr(), rows.adapter_table_rows.ctypes.data,
            ctypes.addressof(self._part_arguments), len(x), x.shape[1], len(self._tables), rows.max_rank, x.stride(0),
            y.stride(0), ACTIVATION_DTYPES.index(x.dtype), ACTIVATION_DTYPES.index(y.dtype)))
