"""Transfers between host and device: buffers with fixed addresses, and copies that do not wait."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle

import torch
from torch import Tensor, cuda

MAX_IN_FLIGHT_STEPS = 2  # steps at most: the last, and one that began before the results of the last were known
ALIGNMENT_WORDS = 4  # numbers of 32 bits: 16 bytes
MAX_COPIED_GAP = 4096  # numbers; a gap up to this size is copied along, which is cheaper than another launch
ARRAY_TYPECODES = {torch.int32: "i", torch.int64: "q", torch.float64: "d"}  # type codes of `array`


class StaticDeviceBuffers:
    """Lists of numbers in device buffers with fixed addresses, read by captured steps and filled from pinned host
    memory. Entries past the end of the last sent list are stale. Before another `copy_to_device`, the caller must have
    waited for all steps but the one that reads the last sent lists."""

    def __init__(self, capacities: Sequence[int], dtype: torch.dtype, device: torch.device,
                 initial_values: Sequence[float] = ()) -> None:
        """Allocate the lists. `initial_values` has the value that fills each list before anything is sent; zero by
        default."""
        starts = [0, *accumulate(count + -count % ALIGNMENT_WORDS for count in capacities)]
        self._device_buffer = torch.zeros(starts[-1], dtype=dtype, device=device)
        self._slices = [slice(first, first + count) for first, count in zip(starts, capacities, strict=False)]
        for list_slice, value in zip(self._slices, initial_values, strict=False):
            self._device_buffer[list_slice] = value
        host = self._device_buffer.cpu()
        # the last copy may still be queued on the device
        self._host_buffers = cycle([host.pin_memory() if device.type == "cuda" else host.clone()
                                    for _ in range(MAX_IN_FLIGHT_STEPS)])

    @property
    def device_lists(self) -> list[Tensor]:
        """Lists on the device, each at its full capacity."""
        return [self._device_buffer[place] for place in self._slices]

    def can_hold(self, lists: Sequence[Sequence[int]]) -> bool:
        return all(len(numbers) <= list_slice.stop - list_slice.start
                   for numbers, list_slice in zip(lists, self._slices, strict=True))

    def copy_to_device(self, lists: Sequence[Sequence[float]]) -> None:
        host_buffer = next(self._host_buffers)
        filled_slices = [slice(place.start, place.start + len(some))
                         for some, place in zip(lists, self._slices, strict=True)]
        for numbers, list_slice in zip(lists, filled_slices, strict=True):
            if numbers:
                host_buffer[list_slice] = torch.frombuffer(array(ARRAY_TYPECODES[host_buffer.dtype], numbers),
                                                           dtype=host_buffer.dtype)
        for merged_slice in merge_slices(filled_slices):
            self._device_buffer[merged_slice].copy_(host_buffer[merged_slice], non_blocking=True)


def merge_slices(slices: Sequence[slice]) -> list[slice]:
    """Merge rising slices into runs that are copied at once, with gaps that are cheaper to copy than another launch."""
    merged: list[slice] = []
    for next_slice in slices:
        if next_slice.start == next_slice.stop:
            continue
        if merged and next_slice.start - merged[-1].stop <= MAX_COPIED_GAP:
            merged[-1] = slice(merged[-1].start, next_slice.stop)
        else:
            merged.append(next_slice)
    return merged


@dataclass(frozen=True, eq=False, slots=True)
class DeviceToHostCopy:
    """Copy from the device that may be under way."""

    host_rows: Tensor
    done_event: cuda.Event | None  # None: it is complete

    def wait(self) -> None:
        """Wait until the copy is complete. Any thread may call this."""
        if self.done_event is not None:
            self.done_event.synchronize()

    def read_rows(self) -> list[list[float]]:
        self.wait()
        rows: list[list[float]] = self.host_rows.tolist()
        return rows


class DeviceToHostCopier:
    """Copier of numbers from one device buffer to the host while the device computes."""

    def __init__(self, source: Tensor) -> None:
        is_cuda = source.device.type == "cuda"
        self._source = source
        self._host_buffers = cycle([torch.empty_like(source, device="cpu", pin_memory=is_cuda)
                                    for _ in range(MAX_IN_FLIGHT_STEPS)])
        self._copy_stream = cuda.Stream(source.device) if is_cuda else None  # type: ignore[no-untyped-call]  # torch has no types there

    def begin_copy(self, num_rows: int) -> DeviceToHostCopy:
        """Begin to copy the first rows, as they are after all work that was launched before."""
        host_rows = next(self._host_buffers)[:num_rows]
        if self._copy_stream is None:
            return DeviceToHostCopy(host_rows.copy_(self._source[:num_rows]), None)
        self._copy_stream.wait_stream(cuda.current_stream(self._source.device))
        with cuda.stream(self._copy_stream):
            host_rows.copy_(self._source[:num_rows], non_blocking=True)
            done_event = cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as above
            done_event.record(self._copy_stream)
        return DeviceToHostCopy(host_rows, done_event)

    def block_stream_until_copied(self) -> None:
        """Make work that is launched from now on wait for the copies under way, so that it may write to the buffer."""
        if self._copy_stream is not None:
            cuda.current_stream(self._source.device).wait_stream(self._copy_stream)


def to_device_int32(lists: list[list[int]], device: torch.device) -> list[Tensor]:
    """Copy the lists to the device in one transfer, as int32. Each begins at a multiple of 16 bytes: Triton compiles
    kernels again for other addresses."""
    numbers = array("i")
    for values in lists:
        numbers.extend(values)
        numbers.extend([0] * (-len(values) % ALIGNMENT_WORDS))
    starts = accumulate((len(some) + -len(some) % ALIGNMENT_WORDS for some in lists), initial=0)
    device_numbers = (torch.frombuffer(numbers, dtype=torch.int32).to(device) if numbers
                      else torch.empty(0, dtype=torch.int32, device=device))
    return [device_numbers[start:start + len(some)] for start, some in zip(starts, lists, strict=False)]
