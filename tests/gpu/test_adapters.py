"""Tests that the LoRA kernels match torch on a GPU. Without a GPU, Triton's interpreter runs the kernels."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")  # available on Linux only

from shard.lora import triton_lora_store
from shard.lora.lora_linear import TorchLoraStore, group_slices_into_parts
from shard.lora.routing import AdapterRouting, AdapterRowSpan, AdapterSlots
from shard.quantization.quantization_format import MatrixSlice

pytestmark = pytest.mark.gpu
TOLERANCE_BY_DTYPE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
NUM_INPUTS, OUTPUT_WIDTHS, LORA_RANKS = 2048, (2048, 512, 512), (4, 8, 16, 17, 64, 128)
ADAPTER_RUNS = [AdapterRowSpan(1, 1), AdapterRowSpan(0, 2), AdapterRowSpan(6, 1), AdapterRowSpan(2, 40),
                AdapterRowSpan(3, 16), AdapterRowSpan(1, 1), AdapterRowSpan(4, 2), AdapterRowSpan(5, 33)]


@pytest.mark.parametrize("dtype", TOLERANCE_BY_DTYPE, ids=str)
def test_lora_kernels_match_torch_and_results_do_not_depend_on_other_rows(dtype: torch.dtype, device: str) -> None:
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter's products of bfloat16 are wrong")
    torch_device, adapter_slots = torch.device(device), AdapterSlots()
    adapter_routing = AdapterRouting(torch_device, adapter_slots)
    parts = group_slices_into_parts([
        MatrixSlice(f"{number}.weight", (width, NUM_INPUTS), range(width), range(NUM_INPUTS))
        for number, width in enumerate(OUTPUT_WIDTHS)])
    implementations = [kind(adapter_routing, parts, dtype, torch_device)
                       for kind in (triton_lora_store.TritonLoraStore, TorchLoraStore)]
    torch.manual_seed(0)
    for adapter, rank in enumerate(LORA_RANKS, 1):
        slot = adapter_slots.allocate_slot(adapter, rank)
        for part, width in enumerate(OUTPUT_WIDTHS):
            down, up = torch.randn(rank, NUM_INPUTS) / NUM_INPUTS ** 0.5, torch.randn(width, rank) / rank ** 0.5
            for implementation in implementations:
                implementation.store_adapter(slot, part, down, up)
    num_rows = sum(run.length for run in ADAPTER_RUNS)
    x, y = (torch.randn(num_rows, width).to(torch_device, dtype) for width in (NUM_INPUTS, sum(OUTPUT_WIDTHS)))

    def add_lora(lora: triton_lora_store.TritonLoraStore | TorchLoraStore, rows: slice,
                 runs: list[AdapterRowSpan]) -> Tensor:
        changed = y[rows].clone()
        adapter_routing.set_rows(runs)
        lora.add_updates_to_output(x[rows], changed)
        return changed

    triton_output, torch_output = (add_lora(kind, slice(None), ADAPTER_RUNS) for kind in implementations)
    torch.testing.assert_close(triton_output, torch_output, rtol=TOLERANCE_BY_DTYPE[dtype],
                               atol=TOLERANCE_BY_DTYPE[dtype])
    adapters = [run.adapter for run in ADAPTER_RUNS for _ in range(run.length)]
    for row in range(0, num_rows, 7):
        assert torch.equal(add_lora(implementations[0], slice(row, row + 1), [AdapterRowSpan(adapters[row], 1)])[0],
                           triton_output[row])
