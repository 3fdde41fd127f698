"""Block tables on the device match the sequence in each row, and only new entries are sent."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.attention.block_tables import DeviceBlockTables

CPU = torch.device("cpu")
NUM_ROWS, MAX_BLOCKS = 4, 6


@given(st.lists(st.tuples(st.permutations(range(6)), st.lists(st.integers(0, 2), min_size=6, max_size=6),
                          st.integers(1, NUM_ROWS)), max_size=12))
def test_each_row_holds_the_blocks_of_its_sequence(steps: list[tuple[list[int], list[int], int]]) -> None:
    """Sequences grow, change rows, pause, and are replaced by others when they are full."""
    tables, new_blocks = DeviceBlockTables(NUM_ROWS, MAX_BLOCKS, CPU), iter(range(1, 10_000))
    sequences = [[next(new_blocks)] for _ in range(6)]
    for order, growth, rows in steps:
        for number, more in enumerate(growth):
            sequences[number] += [next(new_blocks) for _ in range(more)]
            if len(sequences[number]) > MAX_BLOCKS:
                sequences[number] = [next(new_blocks)]
        blocks_by_row = [sequences[number] for number in order[:rows]]
        tables.update([(blocks, len(blocks)) for blocks in blocks_by_row])
        device_tables = tables.flat_tables.view(NUM_ROWS, MAX_BLOCKS)
        assert [device_tables[row, :len(blocks)].tolist() for row, blocks in enumerate(blocks_by_row)] == blocks_by_row


def test_only_new_entries_are_copied_to_the_device() -> None:
    tables, blocks = DeviceBlockTables(2, MAX_BLOCKS, CPU), [[1, 2, 3], [4]]
    assert tables.update([(table, len(table)) for table in blocks]) == 4
    assert tables.update([(table, len(table)) for table in blocks]) == 0
    blocks[1] += [5, 6]
    assert tables.update([(table, len(table)) for table in blocks]) == 2
    assert tables.update([(blocks[1], 3)]) == 3  # in another row
    assert tables.flat_tables.view(2, MAX_BLOCKS)[:, :3].tolist() == [[4, 5, 6], [4, 5, 6]]


@pytest.mark.parametrize("count", [1, 3])
def test_blocks_not_needed_yet_are_copied_later(count: int) -> None:
    tables, blocks = DeviceBlockTables(1, MAX_BLOCKS, CPU), [7, 8, 9, 10]
    assert tables.update([(blocks, count)]) == count
    assert tables.update([(blocks, count - 1)]) == 0
    assert tables.update([(blocks, 4)]) == 4 - count
    assert tables.flat_tables[:4].tolist() == blocks
