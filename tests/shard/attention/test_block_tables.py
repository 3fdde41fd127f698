"""Block tables on the device match the sequence in each row, and only new entries are sent."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.attention.block_tables import Tables

CPU = torch.device("cpu")
ROWS, WIDTH = 4, 6



@given(st.lists(st.tuples(st.permutations(range(6)), st.lists(st.integers(0, 2), min_size=6, max_size=6),
                          st.integers(1, ROWS)), max_size=12))
def test_rows_are_the_blocks_of_who_stands_in_them(steps: list[tuple[list[int], list[int], int]]) -> None:
    """Sequences grow, change rows, pause, and are replaced by others when they are full."""
    tables, fresh = Tables(ROWS, WIDTH, CPU), iter(range(1, 10_000))
    sequences = [[next(fresh)] for _ in range(6)]
    for order, growth, rows in steps:
        for number, more in enumerate(growth):
            sequences[number] += [next(fresh) for _ in range(more)]
            if len(sequences[number]) > WIDTH:
                sequences[number] = [next(fresh)]
        standing = [sequences[number] for number in order[:rows]]
        tables.write([(blocks, len(blocks)) for blocks in standing])
        there = tables.there.view(ROWS, WIDTH)
        assert [there[row, :len(blocks)].tolist() for row, blocks in enumerate(standing)] == standing


def test_only_what_is_new_goes_there() -> None:
    tables, blocks = Tables(2, WIDTH, CPU), [[1, 2, 3], [4]]
    assert tables.write([(table, len(table)) for table in blocks]) == 4
    assert tables.write([(table, len(table)) for table in blocks]) == 0
    blocks[1] += [5, 6]
    assert tables.write([(table, len(table)) for table in blocks]) == 2
    assert tables.write([(blocks[1], 3)]) == 3  # in another row
    assert tables.there.view(2, WIDTH)[:, :3].tolist() == [[4, 5, 6], [4, 5, 6]]


@pytest.mark.parametrize("count", [1, 3])
def test_blocks_that_nobody_looks_at_yet_come_later(count: int) -> None:
    tables, blocks = Tables(1, WIDTH, CPU), [7, 8, 9, 10]
    assert tables.write([(blocks, count)]) == count
    assert tables.write([(blocks, count - 1)]) == 0
    assert tables.write([(blocks, 4)]) == 4 - count
    assert tables.there[:4].tolist() == blocks
