"""The KV cache: in each layer one row per slot, which holds the key and the value of one token.

The router allocates all blocks but the last two. The zero block is never written: where more slots are gathered than a
sequence has, the rest are read from it. The scratch block takes the writes of padding rows.

The cache starts as zeros, and `zero_blocks` serves docs/concepts/exactness.md, "No NaN stays in the cache".
"""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from shard.native.huge_pages import allocate_in_huge_pages
from shard.state.block_usage import MIN_BLOCK_SIZE

NUM_RESERVED_BLOCKS = 2
GATHER_UNIT_SLOTS = MIN_BLOCK_SIZE  # slots that are gathered together


class KVCache:
    """Keys and values of all layers in blocks of slots."""

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, *, block_size: int, num_blocks: int,
                 dtype: torch.dtype, device: torch.device) -> None:
        if block_size % GATHER_UNIT_SLOTS:
            raise ValueError(f"the block size must be a multiple of {GATHER_UNIT_SLOTS}, got {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks  # without the reserved ones
        self.zero_block = num_blocks
        self.scratch_block = num_blocks + 1
        self.scratch_slot = self.scratch_block * block_size
        self.dtype = dtype
        self.device = device
        self.slot_width = 2 * num_kv_heads * head_dim  # numbers in a row: key and value
        self.slot_bytes_per_layer = self.slot_width * dtype.itemsize
        num_blocks += NUM_RESERVED_BLOCKS
        rows = allocate_zeros((num_layers, num_blocks * block_size, self.slot_width), dtype, device)
        self._blocks_by_layer = rows.view(num_layers, num_blocks, -1)
        # Views of one memory, by layer; keys and values are [slots, kv_heads * head_dim], units [units, 16 * width].
        self.keys = [layer[:, :self.slot_width // 2] for layer in rows]
        self.values = [layer[:, self.slot_width // 2:] for layer in rows]
        self.gather_units = [layer.view(-1, GATHER_UNIT_SLOTS * self.slot_width) for layer in rows]

    @staticmethod
    def bytes_per_block(num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> int:
        return num_layers * block_size * 2 * num_kv_heads * head_dim * dtype.itemsize

    def list_slots(self, blocks: Sequence[int], start: int, end: int) -> list[int]:
        """Return the slots of a sequence's positions from `start` to `end`; `blocks` is its block table."""
        size = self.block_size
        if end - start == 1:  # a decode
            return [blocks[start // size] * size + start % size]
        return [blocks[position // size] * size + position % size for position in range(start, end)]

    def list_gather_units(self, blocks: list[int], start: int, end: int, padded_length: int) -> list[int]:
        """Return the units that hold a sequence's positions from `start` to `end`, padded with units of the zero block
        to `padded_length` positions; `start` and `padded_length` are multiples of 16."""
        units_per_block = self.block_size // GATHER_UNIT_SLOTS
        all_units = blocks if units_per_block == 1 else [block * units_per_block + unit for block in blocks
                                                         for unit in range(units_per_block)]
        units = all_units[start // GATHER_UNIT_SLOTS:-(-end // GATHER_UNIT_SLOTS)]
        return units + [self.zero_block * units_per_block] * (padded_length // GATHER_UNIT_SLOTS - len(units))

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Write `keys` and `values` [tokens, kv_heads * head_dim] to the `slots` [tokens] of one layer."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def zero_slots(self, slots: Sequence[int]) -> None:
        """Set slots to zero in all layers."""
        indices = make_int64_tensor(slots).to(self.device)
        for keys, values in zip(self.keys, self.values, strict=True):
            keys.index_fill_(0, indices, 0)
            values.index_fill_(0, indices, 0)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Set blocks to zero in all layers."""
        self._blocks_by_layer.index_fill_(1, make_int64_tensor(blocks).to(self.device), 0)


class TransientKVCache(KVCache):
    """Cache for sequences that are run as a whole: keys and values are not needed once their layer has run, so all
    layers share the memory of one."""

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, *, block_size: int, num_blocks: int,
                 dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(1, num_kv_heads, head_dim, block_size=block_size, num_blocks=num_blocks, dtype=dtype,
                         device=device)
        self.keys, self.values, self.gather_units = (
            views * num_layers for views in (self.keys, self.values, self.gather_units))


def make_int64_tensor(values: Sequence[int]) -> Tensor:
    """Return an int64 tensor of the values, in a seventh of the time of `torch.tensor`."""
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)


def allocate_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. Those on a CPU take memory on first write; `torch.zeros` would write all of them now."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return allocate_in_huge_pages(shape, dtype)
