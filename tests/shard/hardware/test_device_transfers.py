import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.hardware import device_transfers
from shard.hardware.device_transfers import (
    MAX_IN_FLIGHT_STEPS,
    DeviceToHostCopier,
    StaticDeviceBuffers,
    to_device_int32,
)


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
        patch.setattr(device_transfers, "MAX_COPIED_GAP", near)
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
    slices = [slice(0, 3), slice(8, 8), slice(8, 10), slice(10 + device_transfers.MAX_COPIED_GAP, 5000),
              slice(9999, 10_001)]
    assert device_transfers.merge_slices(slices) == [slice(0, 5000), slice(9999, 10_001)]
    assert device_transfers.merge_slices([slice(4, 4)]) == []


def test_host_copy_holds_the_values_of_its_start() -> None:
    source = torch.arange(6.0).view(3, 2)
    host_copier = DeviceToHostCopier(source)
    first = host_copier.begin_copy(2)
    host_copier.block_stream_until_copied()
    source += 1.0
    second = host_copier.begin_copy(1)
    second.wait()
    assert (first.read_rows(), second.read_rows()) == ([[0.0, 1.0], [2.0, 3.0]], [[1.0, 2.0]])
