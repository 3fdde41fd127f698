"""Keys and values of all sequences: in each layer a row per slot, which holds the key and the value of one token.

The blocks are the router's; two more are spare. The zero block is never written: where more places are gathered than a
sequence has, the rest comes from it. The scratch block takes what nobody will read. Knows nothing of who holds a block.

A masked place still takes part in arithmetic, and one that is not a number spoils the row. So the cache starts as
zeros, and the blocks of a sequence whose values are not finite are zeroed.
"""

from collections.abc import Sequence
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor

from shard.attention.span import integers

NUM_SPARE = 2
UNIT = 16  # slots that are gathered together; every block size is a multiple of it


class Cache:
    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, *, block_size: int, num_blocks: int,
                 dtype: torch.dtype, device: torch.device) -> None:
        assert block_size % UNIT == 0
        self.block_size = block_size
        self.num_blocks = num_blocks  # the router's
        self.zero_block = num_blocks
        self.scratch_block = num_blocks + 1
        self.scratch_slot = self.scratch_block * block_size
        self.dtype = dtype
        self.device = device
        self.width = 2 * num_kv_heads * head_dim  # of a row: key and value
        num_blocks += NUM_SPARE
        rows = zeros((num_layers, num_blocks * block_size, self.width), dtype, device)
        self._blocks = rows.view(num_layers, num_blocks, -1)
        # By layer, all of the same memory; keys and values are [slots, kv_heads * head_dim], units [units, 16 * width].
        self.keys = [layer[:, :self.width // 2] for layer in rows]
        self.values = [layer[:, self.width // 2:] for layer in rows]
        self.units = [layer.view(-1, UNIT * self.width) for layer in rows]

    @property
    def bytes_per_slot(self) -> int:
        """In one layer."""
        return self.width * self.dtype.itemsize

    @staticmethod
    def bytes_per_block(num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> int:
        return num_layers * block_size * 2 * num_kv_heads * head_dim * dtype.itemsize

    def slots(self, blocks: Sequence[int], start: int, end: int) -> list[int]:
        """Of a sequence's positions from `start` to `end`."""
        size = self.block_size
        return [blocks[position // size] * size + position % size for position in range(start, end)]

    def units_of(self, blocks: list[int], first: int, end: int, length: int) -> list[int]:
        """Those that hold a sequence's places from `first` to `end`, and then zeros up to `length` places; `first` and
        `length` are multiples of 16."""
        each = self.block_size // UNIT
        held = blocks if each == 1 else [block * each + unit for block in blocks for unit in range(each)]
        units = held[first // UNIT:-(-end // UNIT)]
        return units + [self.zero_block * each] * (length // UNIT - len(units))

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """`keys` and `values` are [tokens, kv_heads * head_dim], `slots` is [tokens]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def zero(self, blocks: Sequence[int]) -> None:
        """In all layers."""
        self._blocks.index_fill_(1, integers(blocks).to(self.device), 0)


class PassingCache(Cache):
    """For sequences that are run as a whole: nobody needs keys and values once their layer has run, so all layers have
    the memory of one."""

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, *, block_size: int, num_blocks: int,
                 dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(1, num_kv_heads, head_dim, block_size=block_size, num_blocks=num_blocks, dtype=dtype,
                         device=device)
        self.keys, self.values, self.units = (some * num_layers for some in (self.keys, self.values, self.units))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On CPU the system hands the memory over page by page when it is written first; `torch.zeros` writes all of it."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap(-1, prod(shape) * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
