"""Tests that the LoRA kernels match torch on a GPU. Without a GPU, Triton's interpreter runs the kernels."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")  # available on Linux only

from shard.adapters import lora_triton
from shard.adapters.lora_torch import Stacks
from shard.adapters.routing import Bearers, Run
from shard.adapters.slots import Racks
from shard.adapters.weight_slices import Portion, parts_of

pytestmark = pytest.mark.gpu
CLOSE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
INPUTS, WIDTHS, RANKS = 2048, (2048, 512, 512), (4, 8, 16, 17, 64, 128)
RUNS = [Run(1, 1), Run(0, 2), Run(6, 1), Run(2, 40), Run(3, 16), Run(1, 1), Run(4, 2), Run(5, 33)]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_the_kernels_add_what_torch_adds_and_company_changes_no_bit(dtype: torch.dtype, device: str) -> None:
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter's products of bfloat16 are wrong")
    where, racks = torch.device(device), Racks()
    bearers = Bearers(where, racks)
    parts = parts_of([Portion(str(number), (width, INPUTS), range(width), range(INPUTS))
                      for number, width in enumerate(WIDTHS)])
    both = [kind(bearers, parts, dtype, where) for kind in (lora_triton.Slabs, Stacks)]
    torch.manual_seed(0)
    for adapter, rank in enumerate(RANKS, 1):
        place = racks.take(adapter, rank)
        for part, width in enumerate(WIDTHS):
            down, up = torch.randn(rank, INPUTS) / INPUTS ** 0.5, torch.randn(width, rank) / rank ** 0.5
            for each in both:
                each.put(place, part, down, up)
    count = sum(run.length for run in RUNS)
    x, y = (torch.randn(count, width).to(where, dtype) for width in (INPUTS, sum(WIDTHS)))

    def added(kind: lora_triton.Slabs | Stacks, rows: slice, runs: list[Run]) -> Tensor:
        changed = y[rows].clone()
        with bearers.rows(runs):
            kind.add(x[rows], changed)
        return changed

    ours, theirs = (added(kind, slice(None), RUNS) for kind in both)
    torch.testing.assert_close(ours, theirs, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    adapters = [run.adapter for run in RUNS for _ in range(run.length)]
    for row in range(0, count, 7):
        assert torch.equal(added(both[0], slice(row, row + 1), [Run(adapters[row], 1)])[0], ours[row])
