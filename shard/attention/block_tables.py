"""Block tables that stay on the device between steps, one row per decode; only new blocks are copied.

This relies on a sequence's block list being the same list object for the sequence's whole life, and only growing. Its
row may change with every step.
"""

from collections.abc import Sequence

import torch

from shard.hardware.device_transfers import StaticDeviceBuffers


class DeviceBlockTables:
    """Block tables of decodes in device memory, updated in place, one row for each decode."""

    def __init__(self, num_rows: int, max_blocks: int, device: torch.device) -> None:
        self.max_blocks = max_blocks
        # all rows, one after the other
        self.flat_tables = torch.zeros(num_rows * max_blocks, dtype=torch.int32, device=device)
        # by row: the block list copied, and how many of it
        self._copied_tables: list[tuple[list[int], int]] = [([], 0)] * num_rows
        self._update_buffers = StaticDeviceBuffers([num_rows * max_blocks] * 2, torch.int32, device)

    def update(self, used_tables: Sequence[tuple[list[int], int]]) -> int:
        """Update the first rows. `used_tables`: each sequence's block list and how many of its blocks are used.

        Return the number of blocks copied.
        """
        changed_entries: list[int] = []
        blocks: list[int] = []
        for row, (table, count) in enumerate(used_tables):
            copied_table, num_copied = self._copied_tables[row]
            if copied_table is not table:
                num_copied = 0
            if count > num_copied:
                changed_entries += range(row * self.max_blocks + num_copied, row * self.max_blocks + count)
                blocks += table[num_copied:count]
                self._copied_tables[row] = table, count
        if changed_entries:
            self._update_buffers.copy_to_device([changed_entries, blocks])
            entry_indices, values = (column[:len(changed_entries)] for column in self._update_buffers.device_lists)
            self.flat_tables.index_copy_(0, entry_indices.long(), values)
        return len(changed_entries)
