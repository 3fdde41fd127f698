"""The LoRA addition of a row is the product of its adapter's matrices, bit-identical in any batch."""

from itertools import accumulate, count, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.process_memory import needs_less_memory
from torch import Tensor

from shard.lora import batch_invariance_check
from shard.lora.lora_linear import (
    FusedLinearPart,
    LinearLoraStore,
    LoraLinear,
    TorchLoraStore,
    group_slices_into_parts,
    multiply_tiles,
)
from shard.lora.native_lora_store import NativeLoraStore
from shard.lora.routing import AdapterRouting, AdapterRowSpan, AdapterSlots
from shard.native.library import load_library
from shard.quantization.quantization_format import MatrixSlice

CPU = torch.device("cpu")
NUM_INPUTS, NUM_OUTPUTS = 48, 40
RANK_BY_ADAPTER = {1: 4, 2: 8, 3: 5, 4: 16, 5: 40}


class AdaptedLinear:
    """A fused linear with two adapted parts; only adapters with odd ids change the second part."""

    def __init__(self, store_type: type[LinearLoraStore]) -> None:
        adapter_slots = AdapterSlots()
        self.adapter_routing = AdapterRouting(CPU, adapter_slots)
        self._outputs = torch.empty(0)  # of the linear without adapters
        matrix_slices = [MatrixSlice("q.weight", (NUM_OUTPUTS, NUM_INPUTS), range(NUM_OUTPUTS), range(NUM_INPUTS)),
                         MatrixSlice("k.weight", (16, NUM_INPUTS), range(8, 16), range(NUM_INPUTS)),
                         MatrixSlice("k.weight", (16, NUM_INPUTS), range(4), range(NUM_INPUTS))]
        with pytest.MonkeyPatch.context() as patch:
            if store_type is TorchLoraStore:
                patch.setattr("shard.lora.lora_linear.load_library", lambda: None)
            self.lora_linear = LoraLinear(lambda x: self._outputs.clone(), self.adapter_routing, matrix_slices,
                                          torch.float32, CPU)
        assert type(self.lora_linear.lora_weights) is store_type
        self.matrices: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        generator = torch.Generator().manual_seed(0)
        for adapter, rank in RANK_BY_ADAPTER.items():
            slot = adapter_slots.allocate_slot(adapter, rank)
            for number, part in enumerate(self.lora_linear.parts[:1 + adapter % 2]):
                down = torch.randn(rank, NUM_INPUTS, generator=generator)
                up = torch.randn(part.shape[0], rank, generator=generator)
                self.matrices[adapter, number] = part.slice_lora_matrices(down, up)
                self.lora_linear.lora_weights.store_adapter(slot, number, *self.matrices[adapter, number])

    def apply_lora(self, x: Tensor, y: Tensor, runs: list[AdapterRowSpan]) -> Tensor:
        self.adapter_routing.set_rows(runs)
        self._outputs = y
        return self.lora_linear(x)


STORE_TYPES: list[type[LinearLoraStore]] = [TorchLoraStore] + [NativeLoraStore] * (load_library() is not None)
ADAPTED_LINEARS = {store_type: AdaptedLinear(store_type) for store_type in STORE_TYPES}
for_each_store = pytest.mark.parametrize("store_type", STORE_TYPES)


given_batches = given(st.lists(st.builds(AdapterRowSpan, st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=8),
                      st.integers(0, 99))


@for_each_store
@given_batches
@settings(max_examples=80)
def test_each_row_uses_its_own_adapter_in_any_batch(store_type: type[LinearLoraStore], runs: list[AdapterRowSpan],
                                                    seed: int) -> None:
    check_adapters_of_rows(ADAPTED_LINEARS[store_type], runs, seed)


@pytest.mark.long
@pytest.mark.timeout(600)
@for_each_store
@given_batches
@settings(max_examples=2000)
def test_each_row_uses_its_own_adapter_in_many_batches(store_type: type[LinearLoraStore], runs: list[AdapterRowSpan],
                                                       seed: int) -> None:
    check_adapters_of_rows(ADAPTED_LINEARS[store_type], runs, seed)


def check_adapters_of_rows(linear: AdaptedLinear, runs: list[AdapterRowSpan], seed: int) -> None:
    adapters = [run.adapter for run in runs for _ in range(run.length)]
    torch.manual_seed(seed)
    x, y = torch.randn(len(adapters), NUM_INPUTS), torch.randn(len(adapters), NUM_OUTPUTS + 12)
    batched = linear.apply_lora(x, y, runs)
    for row, adapter in enumerate(adapters):
        alone = linear.apply_lora(x[row:row + 1], y[row:row + 1], [AdapterRowSpan(adapter, 1)])[0]
        assert torch.equal(batched[row], alone)
        expected = y[row].double()
        for number, part in enumerate(linear.lora_linear.parts):
            if (both := linear.matrices.get((adapter, number))) is not None:
                down, up = (matrix.double() for matrix in both)
                expected[part.output_columns.start:part.output_columns.stop] += up @ (down @ x[row].double())
        torch.testing.assert_close(alone.double(), expected, atol=1e-4, rtol=1e-4)


@for_each_store
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_any_type_and_layout_are_updated(store_type: type[LinearLoraStore], dtype: torch.dtype) -> None:
    linear = ADAPTED_LINEARS[store_type]
    x, y = torch.randn(3, 2 * NUM_INPUTS).to(dtype)[:, ::2], torch.randn(3, NUM_OUTPUTS + 12).to(dtype)
    runs = [AdapterRowSpan(1, 1), AdapterRowSpan(0, 1), AdapterRowSpan(5, 1)]
    updated, expected = linear.apply_lora(x, y, runs), ADAPTED_LINEARS[TorchLoraStore].apply_lora(x, y, runs)
    assert updated.dtype is dtype
    torch.testing.assert_close(updated, expected, atol=0.2 if dtype is torch.bfloat16 else 1e-4, rtol=0.02)
    assert torch.equal(updated[1], y[1])


@pytest.mark.skipif(load_library() is None, reason="there are no compiled kernels here")
def test_kernel_computes_bfloat16_in_float32_and_rounds_once() -> None:
    linear = ADAPTED_LINEARS[NativeLoraStore]
    x, y = torch.randn(4, NUM_INPUTS).bfloat16(), torch.randn(4, NUM_OUTPUTS + 12).bfloat16()
    runs = [AdapterRowSpan(1, 2), AdapterRowSpan(5, 2)]
    wide = linear.apply_lora(x.float(), y.float(), runs)
    assert torch.equal(linear.apply_lora(x, y, runs), wide.bfloat16())
    assert torch.equal(linear.apply_lora(x, y.float(), runs), wide)


@for_each_store
def test_cleared_slot_adds_nothing(store_type: type[LinearLoraStore]) -> None:
    linear = AdaptedLinear(store_type)
    slot = linear.adapter_routing._adapter_slots.find(3)
    assert slot is not None
    linear.lora_linear.lora_weights.clear_slot(slot)
    x, y = torch.randn(2, NUM_INPUTS), torch.randn(2, NUM_OUTPUTS + 12)
    assert torch.equal(linear.apply_lora(x, y, [AdapterRowSpan(3, 2)]), y)


def test_exactness_check_finds_results_that_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for linear in ADAPTED_LINEARS.values():
        assert batch_invariance_check.find_batch_dependence([linear.lora_linear], torch.float32, CPU) == ""

    def multiply_depending_on_batch_size(tiles: Tensor, matrices: Tensor, slots: range) -> Tensor:
        return multiply_tiles(tiles, matrices, slots) * (1 + 1e-6 * len(tiles))

    monkeypatch.setattr("shard.lora.lora_linear.load_library", lambda: None)  # of the linears that are checked
    monkeypatch.setattr("shard.lora.lora_linear.multiply_tiles", multiply_depending_on_batch_size)
    lora_linear = ADAPTED_LINEARS[TorchLoraStore].lora_linear
    reason = batch_invariance_check.find_batch_dependence([lora_linear], torch.float32, CPU)
    assert "adds to a product of 48 inputs and 12 outputs has other bits" in reason


def test_one_adapter_allocates_memory_for_one_adapter_only() -> None:
    adapter_slots, adapter_ids = AdapterSlots(), count(1)
    lora_linear = LoraLinear(lambda x: x, AdapterRouting(CPU, adapter_slots),
                             [MatrixSlice("q.weight", (4096, 4096), range(4096), range(4096))], torch.float32, CPU)
    down, up = torch.randn(64, 4096), torch.randn(4096, 64)

    def put_adapter() -> None:
        assert lora_linear.lora_weights.store_adapter(adapter_slots.allocate_slot(next(adapter_ids), 64), 0, down,
                                                      up) == down.nbytes + up.nbytes

    # memory may come in pages of 2 MiB; all slots need 16x
    assert needs_less_memory(4 * (down.nbytes + up.nbytes), put_adapter)


# -- parts of a fused linear

WEIGHT_INPUTS, WEIGHT_OUTPUTS, RANK = 6, 10, 3


def make_slice(module: str, outputs: range, inputs: range = range(WEIGHT_INPUTS)) -> MatrixSlice:
    return MatrixSlice(f"{module}.weight", (WEIGHT_OUTPUTS, WEIGHT_INPUTS), outputs, inputs)


def make_part(*outputs: range, inputs: range = range(WEIGHT_INPUTS)) -> FusedLinearPart:
    (part,) = group_slices_into_parts([make_slice("q", rows, inputs) for rows in outputs])
    return part


@pytest.fixture(scope="module")
def lora_matrices() -> tuple[Tensor, Tensor]:
    """Matrices of small whole numbers, whose products are exact."""
    generator = torch.Generator().manual_seed(0)
    lora_a, lora_b = (torch.randint(1, 9, shape, generator=generator).float()
                      for shape in ((RANK, WEIGHT_INPUTS), (WEIGHT_OUTPUTS, RANK)))
    return lora_a, lora_b


# -- grouping


SLICES = st.lists(st.builds(make_slice, st.sampled_from("qkv"), st.builds(
    lambda start, length: range(start, start + length), st.integers(0, 9), st.integers(1, 5))), max_size=8)


@given(SLICES)
def test_parts_are_the_slices_in_order_and_cover_the_output(matrix_slices: list[MatrixSlice]) -> None:
    parts = group_slices_into_parts(matrix_slices)
    assert [one for part in parts for one in part.slices] == matrix_slices
    assert [column for part in parts for column in part.output_columns] == list(
        range(sum(len(one.rows) for one in matrix_slices)))
    for part in parts:
        assert len(part.output_columns) == sum(len(one.rows) for one in part.slices)


@given(SLICES)
def test_neighbours_are_in_one_part_exactly_if_they_are_of_one_weight(matrix_slices: list[MatrixSlice]) -> None:
    parts = group_slices_into_parts(matrix_slices)
    assert all({one.module_name for one in part.slices} == {part.module} for part in parts)
    assert all(part.module != following.module for part, following in pairwise(parts))


def test_separate_queries_keys_and_values_are_three_parts() -> None:
    parts = group_slices_into_parts([make_slice("q", range(4, 8)), make_slice("k", range(2, 4)),
                                     make_slice("v", range(2, 4))])
    assert [(part.module, part.output_columns) for part in parts] == [("q", range(4)), ("k", range(4, 6)),
                                                                      ("v", range(6, 8))]


def test_queries_keys_and_values_of_one_weight_are_one_part() -> None:
    part = make_part(range(2), range(4, 6), range(8, 9))
    assert (part.module, part.shape, part.output_columns) == ("q", (WEIGHT_OUTPUTS, WEIGHT_INPUTS), range(5))


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
    lora_a, lora_b = make_part(range(WEIGHT_OUTPUTS), inputs=range(2, 4)).slice_lora_matrices(*lora_matrices)
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
    _, lora_b = make_part(range(WEIGHT_OUTPUTS)).slice_lora_matrices(*lora_matrices)
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
    lora_a, lora_b = torch.randint(9, (RANK, WEIGHT_INPUTS)).float(), torch.randint(9, (WEIGHT_OUTPUTS, RANK)).float()
    updates = [up @ down for down, up in (make_part(outputs).slice_lora_matrices(lora_a, lora_b)
                                          for outputs in cut_into_ranges(sizes, WEIGHT_OUTPUTS))]
    assert torch.equal(torch.cat(updates)[:WEIGHT_OUTPUTS], lora_b @ lora_a)


@given(st.integers(0, WEIGHT_INPUTS))
def test_summands_of_all_ranks_together_are_the_whole_update(cut: int) -> None:
    torch.manual_seed(0)
    lora_a, lora_b = torch.randint(9, (RANK, WEIGHT_INPUTS)).float(), torch.randint(9, (WEIGHT_OUTPUTS, RANK)).float()
    x, summands = torch.randint(9, (WEIGHT_INPUTS,)).float(), []
    for inputs in (range(cut), range(cut, WEIGHT_INPUTS)):
        down, up = make_part(range(WEIGHT_OUTPUTS), inputs=inputs).slice_lora_matrices(lora_a, lora_b)
        summands.append(up @ (down @ x[inputs.start:inputs.stop]))
    assert torch.equal(torch.stack(summands).sum(0), lora_b @ (lora_a @ x))
