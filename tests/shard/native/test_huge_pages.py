"""Memory for packed weights."""

import mmap

import pytest
import torch

from shard.native.huge_pages import HUGE_PAGE_BYTES, allocate_in_huge_pages, pack_contiguously


@pytest.mark.parametrize("num_bytes", [0, 100, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 2])
def test_memory_is_zeros_of_any_size(num_bytes: int) -> None:
    memory = allocate_in_huge_pages((num_bytes // 2,), torch.bfloat16)
    assert (memory.shape, memory.dtype) == ((num_bytes // 2,), torch.bfloat16)
    assert not memory.any()
    memory += 1
    assert bool((memory == 1).all())


def test_tensor_is_copied_in_its_order() -> None:
    tensor = torch.randn(2, 3000, 200)
    packed = pack_contiguously(tensor.permute(2, 0, 1))
    assert packed.is_contiguous()
    assert torch.equal(packed, tensor.permute(2, 0, 1))


def test_system_without_huge_pages_has_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert not allocate_in_huge_pages((HUGE_PAGE_BYTES,), torch.int8).any()
