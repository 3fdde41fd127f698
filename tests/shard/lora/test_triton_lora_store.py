"""LoRA by kernels, under Triton's interpreter, compared with LoRA by torch."""

import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.uninitialized_memory import fill_uninitialized_with_nan
from torch import Tensor

pytest.importorskip("triton")  # published for Linux only

from shard.lora import batch_invariance_check, lora_linear, triton_lora_store
from shard.lora.lora_linear import TorchLoraStore, group_slices_into_parts
from shard.lora.routing import (
    MAX_PADDED_RANK,
    AdapterRouting,
    AdapterRowSpan,
    AdapterSlot,
    AdapterSlots,
    RankBucket,
    StaticLoraWorkList,
)
from shard.quantization.quantization_format import MatrixSlice

CPU = torch.device("cpu")
TOLERANCE_BY_DTYPE = {torch.float32: 1e-5, torch.float16: 4e-3}
# fewer than on a GPU: the interpreter is slow, and two pieces test as much as sixteen
SHORT_SPLIT = 2 * triton_lora_store.INPUTS_PER_DOT
NUM_INPUTS = SHORT_SPLIT + 100  # so that sums have two splits, the second of which is not full
OUTPUT_WIDTHS = 40, 3, triton_lora_store.OUTPUTS_PER_PROGRAM + 9
RANK_BY_ADAPTER = {1: 4, 2: 8, 3: 5, 4: 16, 5: 40}
ADAPTER_RUN_LISTS = st.lists(st.builds(AdapterRowSpan, st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def shorten_splits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_lora_store, "INPUTS_PER_PROGRAM", SHORT_SPLIT)
        yield


@pytest.fixture(autouse=True)
def fill_uninitialized_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_uninitialized_with_nan(monkeypatch)


class LoraPair:
    """A linear of three parts, not all of which every adapter changes, by kernels and by torch."""

    def __init__(self, dtype: torch.dtype) -> None:
        adapter_slots = AdapterSlots()
        self.dtype = dtype
        self.adapter_routing = AdapterRouting(CPU, adapter_slots)
        parts = group_slices_into_parts([
            MatrixSlice(f"{width}.weight", (width, NUM_INPUTS), range(width), range(NUM_INPUTS))
            for width in OUTPUT_WIDTHS])
        self.triton_lora, self.torch_lora = (kind(self.adapter_routing, parts, dtype, CPU)
                                             for kind in (triton_lora_store.TritonLoraStore, TorchLoraStore))
        self.slot_by_adapter = {adapter: adapter_slots.allocate_slot(adapter, rank)
                                for adapter, rank in RANK_BY_ADAPTER.items()}
        torch.manual_seed(0)
        for adapter, rank in RANK_BY_ADAPTER.items():
            for part, width in enumerate(OUTPUT_WIDTHS[:1 + adapter % 3]):
                down, up = torch.randn(rank, NUM_INPUTS) / NUM_INPUTS ** 0.5, torch.randn(width, rank)
                sizes = [lora.store_adapter(self.slot_by_adapter[adapter], part, down, up)
                         for lora in (self.triton_lora, self.torch_lora)]
                assert sizes[0] == sizes[1]

    def add_lora(self, x: Tensor, y: Tensor, runs: list[AdapterRowSpan], *, by_torch: bool = False) -> Tensor:
        changed = y.clone()
        self.adapter_routing.set_rows(runs)
        (self.torch_lora if by_torch else self.triton_lora).add_updates_to_output(x, changed)
        return changed

    def make_random_rows(self, runs: list[AdapterRowSpan]) -> tuple[Tensor, Tensor]:
        num_rows = sum(run.length for run in runs)
        return (torch.randn(num_rows, NUM_INPUTS).to(self.dtype),
                torch.randn(num_rows, sum(OUTPUT_WIDTHS)).to(self.dtype))


@pytest.fixture(params=TOLERANCE_BY_DTYPE, ids=str, scope="module")
def lora_pair(request: pytest.FixtureRequest) -> LoraPair:
    return LoraPair(request.param)


@given(runs=ADAPTER_RUN_LISTS, seed=st.integers(0, 99))
@settings(max_examples=6)
def test_kernels_match_torch(lora_pair: LoraPair, runs: list[AdapterRowSpan], seed: int) -> None:
    torch.manual_seed(seed)
    x, y = lora_pair.make_random_rows(runs)
    output = lora_pair.add_lora(x, y, runs)
    torch.testing.assert_close(output, lora_pair.add_lora(x, y, runs, by_torch=True),
                               rtol=TOLERANCE_BY_DTYPE[lora_pair.dtype], atol=4 * TOLERANCE_BY_DTYPE[lora_pair.dtype])
    rows_without_adapter = torch.tensor([run.adapter == 0 for run in runs for _ in range(run.length)])
    assert torch.equal(output[rows_without_adapter], y[rows_without_adapter])


@given(runs=ADAPTER_RUN_LISTS, seed=st.integers(0, 99))
@settings(max_examples=4)
def test_result_does_not_depend_on_other_rows(lora_pair: LoraPair, runs: list[AdapterRowSpan], seed: int) -> None:
    torch.manual_seed(seed)
    x, y = lora_pair.make_random_rows(runs)
    batched = lora_pair.add_lora(x, y, runs)
    adapters = [run.adapter for run in runs for _ in range(run.length)]
    for row in (0, len(adapters) // 2, len(adapters) - 1):
        alone = lora_pair.add_lora(x[row:row + 1], y[row:row + 1], [AdapterRowSpan(adapters[row], 1)])
        assert torch.equal(batched[row], alone[0])


def test_output_may_have_a_wider_dtype_than_the_adapters() -> None:
    """LoRA is computed in the adapters' type; the output that it is added to keeps its own type."""
    lora_pair, runs = LoraPair(torch.float16), [AdapterRowSpan(1, 2), AdapterRowSpan(0, 1), AdapterRowSpan(5, 3)]
    x, y = lora_pair.make_random_rows(runs)
    output, expected = (lora_pair.add_lora(x, y.float(), runs, by_torch=by_torch) for by_torch in (False, True))
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, expected, rtol=4e-3, atol=1.6e-2)
    assert torch.equal(lora_pair.add_lora(x.float(), y, runs), lora_pair.add_lora(x, y, runs))


def test_adapter_loaded_between_the_two_kernel_launches_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loaded adapter's slot is next to that of an adapter that does not change this linear: for the row of the
    latter, the first kernel has computed nothing."""
    adapter_slots = AdapterSlots()
    adapter_routing = AdapterRouting(CPU, adapter_slots)
    parts = group_slices_into_parts([MatrixSlice("q.weight", (40, NUM_INPUTS), range(40), range(NUM_INPUTS))])
    triton_lora, x, y = triton_lora_store.TritonLoraStore(adapter_routing, parts, torch.float32,
                                                          CPU), torch.randn(2, NUM_INPUTS), torch.randn(2, 40)
    slots, matrices = [adapter_slots.allocate_slot(number, rank) for number, rank in ((1, 8), (2, 64), (3, 64))], (
        torch.randn(8, NUM_INPUTS), torch.randn(40, 8))
    triton_lora.store_adapter(slots[0], 0, *matrices)

    class LoadAdapterBeforeExpand:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*tensors: Tensor, **constants: int) -> None:
                triton_lora.store_adapter(slots[2], 0, *matrices)
                expand[grid](*tensors, **constants)
            return launch

    expand = triton_lora_store.lora_expand
    adapter_routing.set_rows([AdapterRowSpan(1, 1), AdapterRowSpan(2, 1)])
    with monkeypatch.context() as patch:
        patch.setattr(triton_lora_store, "lora_expand", LoadAdapterBeforeExpand())
        triton_lora.add_updates_to_output(x, changed := y.clone())
    assert torch.equal(changed[1], y[1])
    assert not torch.equal(changed[0], y[0])


@pytest.mark.parametrize(("programs", "shared"), [(1, [1, 1, 1]), (12, [6, 4, 2]), (10**6, [6, 6, 6])])
def test_programs_share_work_where_the_number_of_entries_is_unknown(
        lora_pair: LoraPair, programs: int, shared: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = [1, 0, 3, 5, 2, 4]
    static_work, runs = StaticLoraWorkList(6, CPU), [AdapterRowSpan(adapter, 1) for adapter in adapters]
    x, y = lora_pair.make_random_rows(runs)
    lora_pair.adapter_routing.set_rows(runs)
    work = lora_pair.adapter_routing.rows.lora_work
    assert work is not None
    monkeypatch.setattr(triton_lora_store, "TARGET_PROGRAMS", programs)
    assert triton_lora_store.choose_num_programs(work, 1000) == 5
    assert [triton_lora_store.choose_num_programs(static_work.view_rows(6), grid_size)
            for grid_size in (1, 3, 6)] == shared
    assert lora_pair.adapter_routing.write_static_work(static_work, adapters)
    changed = y.clone()
    lora_pair.adapter_routing.set_rows((), static_work.view_rows(6))
    lora_pair.triton_lora.add_updates_to_output(x, changed)
    assert torch.equal(changed, lora_pair.add_lora(x, y, runs))


def test_reported_memory_is_what_is_allocated_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is reserved for adapters that may never be loaded: on a GPU it would be allocated at once."""
    adapter_slots = AdapterSlots()
    parts = group_slices_into_parts([
        MatrixSlice(f"{width}.weight", (width, NUM_INPUTS), range(width), range(NUM_INPUTS))
        for width in OUTPUT_WIDTHS])
    triton_lora, slot = triton_lora_store.TritonLoraStore(AdapterRouting(CPU, adapter_slots), parts, torch.float16,
                                                          CPU), adapter_slots.allocate_slot(1, 5)
    triton_lora.store_adapter(slot, 0, torch.randn(5, NUM_INPUTS), torch.randn(OUTPUT_WIDTHS[0], 5))  # compiles
    allocated, original_zeros = list[Tensor](), triton_lora._make_zeros

    def record_zeros(*shape: int) -> Tensor:
        allocated.append(original_zeros(*shape))
        return allocated[-1]

    monkeypatch.setattr(triton_lora, "_make_zeros", record_zeros)
    sizes = [triton_lora.store_adapter(slot, part, torch.randn(5, NUM_INPUTS), torch.randn(OUTPUT_WIDTHS[part], 5))
             for part in (1, 2)]
    assert sizes == [2 * 8 * (NUM_INPUTS + OUTPUT_WIDTHS[part]) for part in (1, 2)]
    assert sum(sizes) == sum(tensor.nbytes for tensor in allocated)
    weak_references = [*map(weakref.ref, allocated)]
    allocated.clear()
    triton_lora.clear_slot(slot)
    assert [reference() for reference in weak_references] == [None] * 4
    assert not any(table.any() for table in triton_lora._address_tables)


def test_input_rows_may_be_strided(lora_pair: LoraPair) -> None:
    runs = [AdapterRowSpan(1, 2), AdapterRowSpan(3, 1)]
    x, y = lora_pair.make_random_rows(runs)
    strided = torch.full((3, NUM_INPUTS + 7), float("nan"), dtype=lora_pair.dtype)
    strided[:, :NUM_INPUTS] = x
    assert torch.equal(lora_pair.add_lora(strided[:, :NUM_INPUTS], y, runs), lora_pair.add_lora(x, y, runs))


def test_cleared_slot_adds_nothing_and_its_next_adapter_only_its_own() -> None:
    lora_pair = LoraPair(torch.float32)
    x, y = lora_pair.make_random_rows([AdapterRowSpan(5, 2)])
    lora_pair.triton_lora.clear_slot(lora_pair.slot_by_adapter[5])
    lora_pair.triton_lora.clear_slot(AdapterSlots().allocate_slot(9, 128))  # a slot that was never used
    assert torch.equal(lora_pair.add_lora(x, y, [AdapterRowSpan(5, 2)]), y)
    down, up = torch.randn(33, NUM_INPUTS), torch.randn(OUTPUT_WIDTHS[1], 33)
    for lora in (lora_pair.triton_lora, lora_pair.torch_lora):
        lora.store_adapter(lora_pair.slot_by_adapter[5], 1, down, up)
    output = lora_pair.add_lora(x, y, [AdapterRowSpan(5, 2)])
    assert not torch.equal(output, y)
    columns = slice(OUTPUT_WIDTHS[0], OUTPUT_WIDTHS[0] + OUTPUT_WIDTHS[1])
    torch.testing.assert_close((output - y)[:, columns], x @ down.T @ up.T, rtol=1e-4, atol=1e-3)
    assert torch.equal(output[:, :OUTPUT_WIDTHS[0]], y[:, :OUTPUT_WIDTHS[0]])


def test_step_captured_before_adapters_were_loaded_applies_them() -> None:
    """Any row may use an adapter of any rank in a replayed step, with the same bits as in a launched step."""
    adapter_slots = AdapterSlots()
    adapter_routing, static_work = AdapterRouting(CPU, adapter_slots), StaticLoraWorkList(6, CPU)
    parts = group_slices_into_parts([
        MatrixSlice(f"{width}.weight", (width, NUM_INPUTS), range(width), range(NUM_INPUTS))
        for width in OUTPUT_WIDTHS])
    triton_lora = triton_lora_store.TritonLoraStore(adapter_routing, parts, torch.float32, CPU)
    x, y = torch.randn(6, NUM_INPUTS), torch.randn(6, sum(OUTPUT_WIDTHS))

    def replay() -> Tensor:
        changed = y.clone()
        adapter_routing.set_rows((), static_work.view_rows(6))
        triton_lora.add_updates_to_output(x, changed)
        return changed

    with torch.inference_mode():  # as at warm-up
        assert torch.equal(replay(), y)
    for adapter, rank in enumerate((3, 40, 3), 1):
        triton_lora.store_adapter(adapter_slots.allocate_slot(adapter, rank),
                                  1, torch.randn(rank, NUM_INPUTS) / NUM_INPUTS ** 0.5,
                                  torch.randn(OUTPUT_WIDTHS[1], rank))
    adapter_slots.allocate_slot(4, 16)  # has no matrices for this linear
    for adapters in ([1, 2, 0, 3, 4, 2], [2, 2, 2], [0, 4], [3]):
        assert adapter_routing.write_static_work(static_work, adapters)
        launched = y.clone()
        adapter_routing.set_rows([AdapterRowSpan(adapter, 1) for adapter in adapters + [0] * (6 - len(adapters))])
        triton_lora.add_updates_to_output(x, launched)
        assert torch.equal(replay(), launched)
        changed = [not torch.equal(*rows) for rows in zip(launched, y, strict=True)]
        assert changed == [adapter in {1, 2, 3} for adapter in adapters] + [False] * (6 - len(adapters))


@pytest.mark.parametrize("place", [
    AdapterSlot(RankBucket(2 * MAX_PADDED_RANK, 0), 0, 0),
    AdapterSlot(RankBucket(8, 0), 0, triton_lora_store.MAX_ADAPTERS)])
def test_too_many_adapters_and_too_large_ranks_are_rejected(lora_pair: LoraPair, place: AdapterSlot) -> None:
    with pytest.raises(RuntimeError, match="1024 adapters can be on a GPU at once, and none of a rank above 1024"):
        lora_pair.triton_lora.store_adapter(place, 0, torch.zeros(1, NUM_INPUTS), torch.zeros(OUTPUT_WIDTHS[0], 1))


def test_matrices_that_could_not_be_copied_are_not_addressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the matrices is freed as soon as the slot is cleared."""
    adapter_slots = AdapterSlots()
    parts = group_slices_into_parts([MatrixSlice("q.weight", (40, NUM_INPUTS), range(40), range(NUM_INPUTS))])
    triton_lora, slot = triton_lora_store.TritonLoraStore(AdapterRouting(CPU, adapter_slots), parts, torch.float32,
                                                          CPU), adapter_slots.allocate_slot(1, 8)
    with pytest.raises(RuntimeError):
        triton_lora.store_adapter(slot, 0, torch.randn(8, NUM_INPUTS), torch.randn(41, 8))
    assert not any(table.any() for table in triton_lora._address_tables)
    triton_lora.clear_slot(slot)
    assert not triton_lora._matrices


def test_exactness_check_covers_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_linear, "import_kernels", lambda device, module: triton_lora_store)
    linear = lora_linear.LoraLinear(lambda x: x, AdapterRouting(CPU, AdapterSlots()),
                                    [MatrixSlice("q.weight", (24, 72), range(24), range(72))], torch.float32, CPU)
    assert isinstance(linear.lora_weights, triton_lora_store.TritonLoraStore)
    assert batch_invariance_check.find_batch_dependence([linear], torch.float32, CPU) == ""
