"""Recorded kernels, the memory of their results, and phases on several threads."""

import pytest
import torch
from torch import Tensor

from shard.native.kernel_recording import KernelRecording, ResultMemory, UnrecordableOperation
from shard.native.library import allocate_result, load_library
from shard.ops.native_fused_ops import rms_norm

library = load_library()
needs_kernels = pytest.mark.skipif(library is None, reason="there are no compiled kernels here")

WEIGHT = torch.ones(140)


def norm(x: Tensor, delta: Tensor | None = None) -> Tensor:
    return rms_norm(x, WEIGHT[:x.shape[1]], 1e-6, round_after_weight=True, delta=delta)


def test_memory_is_taken_over_when_the_last_view_is_gone() -> None:
    memory = ResultMemory()
    first = memory.allocate((3, 50), torch.float32)
    address, view = first.data_ptr(), first[1:, 10:20]
    del first
    other = memory.allocate((3, 50), torch.float32)
    assert other.data_ptr() != address
    del view
    smaller = memory.allocate((100,), torch.bfloat16)
    assert (smaller.data_ptr(), smaller.shape, smaller.dtype) == (address, (100,), torch.bfloat16)


def test_the_smallest_memory_that_is_large_enough_is_taken() -> None:
    memory = ResultMemory()
    tensors = [memory.allocate((size,), torch.float32) for size in (1000, 100, 500)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    del tensors
    assert memory.allocate((90,), torch.float32).data_ptr() == addresses[1]
    assert memory.allocate((400,), torch.float32).data_ptr() == addresses[2]
    before = memory.num_bytes
    memory.allocate((2000,), torch.float32)
    assert memory.num_bytes == before + 8192


def test_growing_results_leave_few_blocks_behind() -> None:
    memory = ResultMemory()
    for size in range(1000, 100_000, 1000):
        memory.allocate((size,), torch.float32)
    assert memory.num_bytes <= 4 * 4 * 100_000


def test_a_view_beyond_its_life_lets_the_memory_go() -> None:
    memory = ResultMemory()
    tensor = memory.allocate((10, 3), torch.bfloat16)
    tensor.fill_(2.0)
    view = memory.view_without_keeping_alive(tensor)
    assert torch.equal(view, tensor)
    address = tensor.data_ptr()
    del tensor
    assert memory.allocate((30,), torch.bfloat16).data_ptr() == address == view.data_ptr()


def test_memory_is_aligned_and_separate() -> None:
    memory = ResultMemory()
    tensors = [memory.allocate((size,), torch.int16).fill_(size) for size in (1, 31, 33, 500)]
    assert all(tensor.data_ptr() % 64 == 0 and (tensor == len(tensor)).all() for tensor in tensors)


@needs_kernels
def test_recorded_kernels_run_with_what_their_inputs_hold_then() -> None:
    assert library is not None
    x, delta = torch.zeros(4, 70), torch.zeros(4, 70)
    recording = KernelRecording(ResultMemory())
    with recording.record():
        result = norm(norm(x, delta).view(2, 140).view(4, 70))
    phases = recording.make_native_phases()
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        delta.normal_()
        expected = norm(norm(x.clone(), delta))
        library.run_phases(phases, len(phases))
        assert torch.equal(result, expected)


@needs_kernels
@pytest.mark.parametrize("operation", ["x + 1", "x.mul_(2)", "x.bfloat16()", "x[:, :3].contiguous()", "x[[2, 0]]",
                                       "x.zero_()", "torch.zeros(3)", "torch.cat([x, x])", "x.sum().item()"])
@torch.inference_mode()
def test_what_torch_computes_cannot_be_recorded(operation: str) -> None:
    x = torch.ones(4, 70)
    norm(x)
    with pytest.raises(UnrecordableOperation), KernelRecording(ResultMemory()).record():
        eval(operation, {"x": x, "torch": torch})
    assert torch.equal(allocate_result(2).zero_(), torch.zeros(2))  # the recording is over


@needs_kernels
@torch.inference_mode()
def test_views_and_conversions_to_the_same_type_are_recorded() -> None:
    x = torch.ones(4, 70)
    with KernelRecording(ResultMemory()).record():
        first, second = norm(x).float().contiguous().view(-1, 2, 35)[:, :, :30].chunk(2, dim=1)
        assert first.shape == second.shape == (4, 1, 30)


@needs_kernels
@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_a_phase_begins_when_all_parts_of_the_last_are_done(num_threads: int) -> None:
    """Each of 600 phases of 1 to 7 rows reads what those before wrote, also on more threads than there are cores."""
    assert library is not None
    recording, x = KernelRecording(ResultMemory()), torch.randn(7, 33)
    with recording.record():
        results, parts = [x, norm(x)], []
        for number in range(300):
            results.append(norm(results[-1], results[-2]))
            parts.append(norm(results[-1][number % 7:]))
    phases = recording.make_native_phases()
    before = x.clone()
    library.run_phases(phases, len(phases), 1)
    results += parts
    assert all(result.isfinite().all() for result in results)
    expected = [result.clone() for result in results]
    for _ in range(20):
        x.copy_(before)
        for result in results[1:]:
            result.fill_(torch.nan)
        library.run_phases(phases, len(phases), num_threads)
        assert all(map(torch.equal, results, expected))


@needs_kernels
def test_phases_without_parts_are_passed_over() -> None:
    assert library is not None
    recording, x = KernelRecording(ResultMemory()), torch.randn(3, 16)
    with recording.record():
        norm(x[:0])
        result = norm(x)
        norm(x[:0])
    phases = recording.make_native_phases()
    library.run_phases(phases, len(phases), 2)
    assert torch.equal(result, norm(x))
    assert norm(x[:0]).shape == (0, 16)
