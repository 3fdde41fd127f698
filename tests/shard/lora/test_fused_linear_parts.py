"""Tests of shard/lora/fused_linear_parts.py."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shard.lora.fused_linear_parts import FusedLinearPart, WeightSlice, group_slices_into_parts

NUM_INPUTS, NUM_OUTPUTS, RANK = 6, 10, 3


def make_slice(module: str, outputs: range, inputs: range = range(NUM_INPUTS)) -> WeightSlice:
    return WeightSlice(module, (NUM_OUTPUTS, NUM_INPUTS), outputs, inputs)


def make_part(*outputs: range, inputs: range = range(NUM_INPUTS)) -> FusedLinearPart:
    (part,) = group_slices_into_parts([make_slice("q", rows, inputs) for rows in outputs])
    return part


@pytest.fixture(scope="module")
def lora_matrices() -> tuple[Tensor, Tensor]:
    """Matrices of small whole numbers, whose products are exact."""
    generator = torch.Generator().manual_seed(0)
    lora_a, lora_b = (torch.randint(1, 9, shape, generator=generator).float()
                      for shape in ((RANK, NUM_INPUTS), (NUM_OUTPUTS, RANK)))
    return lora_a, lora_b


# -- grouping


SLICES = st.lists(st.builds(make_slice, st.sampled_from("qkv"), st.builds(
    lambda start, length: range(start, start + length), st.integers(0, 9), st.integers(1, 5))), max_size=8)


@given(SLICES)
def test_parts_are_the_slices_in_order_and_cover_the_output(weight_slices: list[WeightSlice]) -> None:
    parts = group_slices_into_parts(weight_slices)
    assert [one for part in parts for one in part.weight_slices] == weight_slices
    assert [column for part in parts for column in part.output_columns] == list(
        range(sum(len(one.outputs) for one in weight_slices)))
    for part in parts:
        assert len(part.output_columns) == sum(len(one.outputs) for one in part.weight_slices)


@given(SLICES)
def test_neighbours_are_in_one_part_exactly_if_they_are_of_one_weight(weight_slices: list[WeightSlice]) -> None:
    parts = group_slices_into_parts(weight_slices)
    assert all({one.module for one in part.weight_slices} == {part.module} for part in parts)
    assert all(part.module != following.module for part, following in pairwise(parts))


def test_separate_queries_keys_and_values_are_three_parts() -> None:
    parts = group_slices_into_parts([make_slice("q", range(4, 8)), make_slice("k", range(2, 4)),
                                     make_slice("v", range(2, 4))])
    assert [(part.module, part.output_columns) for part in parts] == [("q", range(4)), ("k", range(4, 6)),
                                                                      ("v", range(6, 8))]


def test_queries_keys_and_values_of_one_weight_are_one_part() -> None:
    part = make_part(range(2), range(4, 6), range(8, 9))
    assert (part.module, part.shape, part.output_columns) == ("q", (NUM_OUTPUTS, NUM_INPUTS), range(5))


# -- slicing


def test_outputs_are_rows_of_the_second_matrix_in_the_order_of_the_linear(lora_matrices: tuple[Tensor, Tensor]) -> None:
    lora_a, lora_b = make_part(range(8, 10), range(2, 5)).slice_lora_matrices(*lora_matrices)
    assert torch.equal(lora_a, lora_matrices[0])
    assert torch.equal(lora_b, lora_matrices[1][[8, 9, 2, 3, 4]])


def test_matrices_of_a_part_do_not_depend_on_its_place_in_the_linear(lora_matrices: tuple[Tensor, Tensor]) -> None:
    _, part = group_slices_into_parts([make_slice("q", range(4)), make_slice("k", range(8, 10))])
    _, lora_b = part.slice_lora_matrices(*lora_matrices)
    assert torch.equal(lora_b, lora_matrices[1][8:])


def test_inputs_are_columns_of_the_first_matrix(lora_matrices: tuple[Tensor, Tensor]) -> None:
    lora_a, lora_b = make_part(range(NUM_OUTPUTS), inputs=range(2, 4)).slice_lora_matrices(*lora_matrices)
    assert torch.equal(lora_a, lora_matrices[0][:, [2, 3]])
    assert torch.equal(lora_b, lora_matrices[1])


@pytest.mark.parametrize(("outputs", "num_held"), [(range(8, 12), 2), (range(10, 14), 0), (range(12, 16), 0)])
def test_outputs_past_the_end_of_the_weight_are_zeros(lora_matrices: tuple[Tensor, Tensor], outputs: range,
                                                      num_held: int) -> None:
    """The vocabulary is padded to a multiple of the ranks: the last ones may hold no row of it."""
    _, lora_b = make_part(outputs).slice_lora_matrices(*lora_matrices)
    assert torch.equal(lora_b[:num_held], lora_matrices[1][outputs.start:])
    assert torch.equal(lora_b[num_held:], torch.zeros(4 - num_held, RANK))


def test_slice_behind_a_padded_one_keeps_its_place(lora_matrices: tuple[Tensor, Tensor]) -> None:
    _, lora_b = make_part(range(9, 12), range(2)).slice_lora_matrices(*lora_matrices)
    assert torch.equal(lora_b, torch.cat([lora_matrices[1][9:], torch.zeros(2, RANK), lora_matrices[1][:2]]))


def test_slicing_leaves_the_adapters_matrices_as_they_are(lora_matrices: tuple[Tensor, Tensor]) -> None:
    copies = [matrix.clone() for matrix in lora_matrices]
    _, lora_b = make_part(range(NUM_OUTPUTS)).slice_lora_matrices(*lora_matrices)
    lora_b.zero_()
    assert all(map(torch.equal, lora_matrices, copies))


CUTS = st.lists(st.integers(1, 4), min_size=4, max_size=4)


def cut_into_ranges(sizes: list[int], end: int) -> list[range]:
    """Cut `range(end)`, or what goes beyond it, into four ranges, of which the last is as long as it needs to be."""
    starts = [0, *accumulate(sizes[:-1])]
    return [range(*pair) for pair in pairwise([*starts, max(end, starts[-1] + sizes[-1])])]


@given(CUTS)
def test_outputs_of_all_ranks_together_are_the_whole_update(sizes: list[int]) -> None:
    torch.manual_seed(0)
    lora_a, lora_b = torch.randint(9, (RANK, NUM_INPUTS)).float(), torch.randint(9, (NUM_OUTPUTS, RANK)).float()
    updates = [up @ down for down, up in (make_part(outputs).slice_lora_matrices(lora_a, lora_b)
                                          for outputs in cut_into_ranges(sizes, NUM_OUTPUTS))]
    assert torch.equal(torch.cat(updates)[:NUM_OUTPUTS], lora_b @ lora_a)


@given(st.integers(0, NUM_INPUTS))
def test_summands_of_all_ranks_together_are_the_whole_update(cut: int) -> None:
    torch.manual_seed(0)
    lora_a, lora_b = torch.randint(9, (RANK, NUM_INPUTS)).float(), torch.randint(9, (NUM_OUTPUTS, RANK)).float()
    x, summands = torch.randint(9, (NUM_INPUTS,)).float(), []
    for inputs in (range(cut), range(cut, NUM_INPUTS)):
        down, up = make_part(range(NUM_OUTPUTS), inputs=inputs).slice_lora_matrices(lora_a, lora_b)
        summands.append(up @ (down @ x[inputs.start:inputs.stop]))
    assert torch.equal(torch.stack(summands).sum(0), lora_b @ (lora_a @ x))
