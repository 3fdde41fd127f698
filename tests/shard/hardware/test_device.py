from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.hardware import device
from shard.hardware.device import (
    MAX_IN_FLIGHT_STEPS,
    HostCopier,
    StaticDeviceBuffers,
    choose_device,
    choose_num_threads,
    count_ranks_on_gpu,
    to_device_int32,
    use_one_thread,
)


@pytest.mark.parametrize(("asked", "num_gpus", "device"), [
    ("auto", 0, "cpu"), ("auto", 2, "cuda:1"), ("cpu", 2, "cpu"), ("cuda", 2, "cuda:1"), ("cuda", 1, "cuda:0")])
def test_gpus_are_used_if_there_are_any(asked: str, num_gpus: int, device: str) -> None:
    assert choose_device(asked, 3, num_gpus) == torch.device(device)


def test_cuda_without_a_gpu_is_rejected() -> None:
    with pytest.raises(ValueError, match="--device cuda needs a GPU that torch can use, there is none; use"):
        choose_device("cuda", 0, 0)


def test_ranks_sharing_a_gpu_are_counted() -> None:
    assert [count_ranks_on_gpu(rank, 3, 2) for rank in range(3)] == [2, 1, 2]
    assert count_ranks_on_gpu(1, 4, 8) == 1


@pytest.mark.parametrize(("cores", "shards", "threads"), [
    (2, 1, 2), (2, 2, 1), (2, 4, 1), (4, 1, 4), (4, 3, 1), (8, 1, 7), (8, 2, 3), (64, 4, 15)])
def test_shards_share_the_cores_and_leave_one_of_many_to_the_router(cores: int, shards: int, threads: int) -> None:
    assert choose_num_threads(0, cores, shards) == threads


def test_requested_number_of_threads_is_used() -> None:
    assert choose_num_threads(5, 2, 2) == 5


def test_background_work_uses_one_thread_and_leaves_those_of_steps() -> None:
    with ThreadPoolExecutor(1) as steps, ThreadPoolExecutor(1) as background:
        steps.submit(torch.set_num_threads, 3).result()
        before = background.submit(torch.get_num_threads).result()
        assert background.submit(count_threads_within_one_thread).result() == 1
        assert background.submit(torch.get_num_threads).result() == before
        assert steps.submit(torch.get_num_threads).result() == 3


def count_threads_within_one_thread() -> int:
    with use_one_thread():
        return torch.get_num_threads()


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), min_size=1, max_size=5))
def test_lists_sent_to_the_device_are_aligned(lists: list[list[int]]) -> None:
    parts = to_device_int32(lists, torch.device("cpu"))
    assert [part.tolist() for part in parts] == lists
    assert not any(part.data_ptr() % 16 for part in parts if len(part))


def test_steps_in_flight_use_separate_host_buffers() -> None:
    static_buffers = StaticDeviceBuffers([3, 2], torch.float64, torch.device("cpu"))
    host_buffers = [next(static_buffers._host_buffers) for _ in range(MAX_IN_FLIGHT_STEPS)]
    assert len({host.data_ptr() for host in host_buffers}) == MAX_IN_FLIGHT_STEPS
    for lists in ([[1.5, 2.0, 3.0], [4.0]], [[5.0], []]):
        static_buffers.copy_to_device(lists)
    first, second = static_buffers.device_lists
    assert (first.tolist(), second.tolist()) == ([5.0, 2.0, 3.0], [4.0, 0.0])
    assert static_buffers.can_hold([[1, 2, 3], [4, 5]])
    assert not static_buffers.can_hold([[], [1, 2, 3]])


SENT_VALUES = st.lists(st.integers(1, 99), max_size=7)


@given(st.lists(st.tuples(SENT_VALUES, SENT_VALUES, SENT_VALUES), max_size=4), st.sampled_from([0, 3, 4096]))
def test_device_lists_begin_with_the_values_sent_last(sendings: list[tuple[list[int], ...]], near: int) -> None:
    """Entries past the end of a list are stale values sent before, however many lists are copied at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "MAX_COPIED_GAP", near)
        static_buffers = StaticDeviceBuffers([7, 9, 7], torch.int32, torch.device("cpu"), [0, 100, 0])
        possible_values = [[{0}] * 7, [{100}] * 9, [{0}] * 7]
        for lists in sendings:
            static_buffers.copy_to_device(lists)
            for sent_values, device_list, possible_entries in zip(lists, static_buffers.device_lists, possible_values,
                                                                  strict=True):
                assert device_list[:len(sent_values)].tolist() == sent_values
                possible_entries[:len(sent_values)] = [
                    values | {new} for values, new in zip(possible_entries, sent_values, strict=False)]
                assert all(value in values
                           for value, values in zip(device_list.tolist(), possible_entries, strict=True))


def test_nearby_lists_are_copied_at_once() -> None:
    slices = [slice(0, 3), slice(8, 8), slice(8, 10), slice(10 + device.MAX_COPIED_GAP, 5000), slice(9999, 10_001)]
    assert device.merge_slices(slices) == [slice(0, 5000), slice(9999, 10_001)]
    assert device.merge_slices([slice(4, 4)]) == []


def test_host_copy_holds_the_values_of_its_start() -> None:
    source = torch.arange(6.0).view(3, 2)
    host_copier = HostCopier(source)
    first = host_copier.begin_copy(2)
    host_copier.block_stream_until_copied()
    source += 1.0
    second = host_copier.begin_copy(1)
    second.wait()
    assert (first.read_rows(), second.read_rows()) == ([[0.0, 1.0], [2.0, 3.0]], [[1.0, 2.0]])
