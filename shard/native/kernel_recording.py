"""Recording of kernels, so that a sequence of them runs in one call, again and again with the same memory.

While a recording is active in a thread, kernels are collected instead of run, and their results get memory that stays
theirs: what one kernel no longer needs, a later one may use. The caller writes inputs into tensors that were there
before, and reads the last results after each run.
"""

import ctypes
import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ALIGNMENT = 64  # of results, in bytes


class KernelPhase(ctypes.Structure):
    """`Phase` in phases.h."""

    _fields_: ClassVar = [("run", ctypes.c_void_p), ("arguments", ctypes.c_void_p), ("kernels", ctypes.c_void_p),
                          ("num_parts", ctypes.c_int64)]


PhaseArray: TypeAlias = "ctypes.Array[KernelPhase]"


class ResultMemory:
    """Memory of results, which later results take over once no tensor uses it."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray[Any, Any]] = []
        self._free_blocks: list[int] = []  # indices in `_blocks`

    @property
    def num_bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # Powers of two, so that ever larger results do not each leave a block behind that is too small for the next.
        num_bytes = max(ALIGNMENT, 1 << (prod(shape) * dtype.itemsize - 1).bit_length())
        large_enough = [index for index in self._free_blocks if self._blocks[index].nbytes >= num_bytes]
        if large_enough:
            index = min(large_enough, key=lambda free: self._blocks[free].nbytes)
            self._free_blocks.remove(index)
        else:
            index = len(self._blocks)
            self._blocks.append(allocate_aligned(num_bytes))
        # The tensor's memory refers to this array, and nothing else does, so it dies with the last view of the tensor.
        array = self._blocks[index][:prod(shape) * dtype.itemsize]
        weakref.finalize(array, self._free_blocks.append, index)
        return torch.from_numpy(array).view(dtype).view(shape)

    def view_without_keeping_alive(self, tensor: Tensor) -> Tensor:
        """Return a view of an allocated tensor by which its memory counts as free nonetheless."""
        memory = (ctypes.c_char * (tensor.numel() * tensor.itemsize)).from_address(tensor.data_ptr())
        return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


def allocate_aligned(num_bytes: int) -> "np.ndarray[Any, Any]":
    memory = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first:first + num_bytes]


class UnrecordableOperation(Exception):
    """An operation of torch between kernels, which a recording would leave out."""


class RefuseOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """Raises `UnrecordableOperation` for operations that compute. Those that allocate memory, or return a view of a
    tensor or the tensor itself, pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if func.name() != "aten::empty.memory_format" and (
                func._schema.is_mutable or not list_addresses(results) <= list_addresses(args)):
            raise UnrecordableOperation(func.name())
        return results


# torch wraps the method so that its compiler leaves it alone, and the first call would import all of that, which takes
# as long as torch itself. Nothing is compiled here.
RefuseOperations.__torch_dispatch__ = inspect.unwrap(RefuseOperations.__torch_dispatch__)  # type: ignore[method-assign]


def list_addresses(values: Any) -> set[int]:
    """Return the addresses of the memory that tensors among the values have. One in a layout of oneDNN's, whose memory
    is hidden, has none that another shares."""
    tensors = [values] if isinstance(values, Tensor) else [value for value in values if isinstance(value, Tensor)]
    return {tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor) for tensor in tensors}


class KernelRecording:
    """Recorded kernels, with the memory of their results."""

    def __init__(self, memory: ResultMemory) -> None:
        """`memory` may be that of other recordings that never run at the same time."""
        self.memory = memory
        self._phases: list[KernelPhase] = []
        self._kept_alive: list[object] = []

    def add(self, phases: PhaseArray, count: int, arguments: ctypes.Structure) -> None:
        """Add phases that refer to `arguments`."""
        self._phases += phases[:count]
        self._kept_alive += phases, arguments

    def make_native_phases(self) -> PhaseArray:
        return (KernelPhase * len(self._phases))(*self._phases)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the kernels of this thread. Raises `UnrecordableOperation` where torch computes between them."""
        token = ACTIVE_RECORDING.set(self)
        try:
            with RefuseOperations():  # type: ignore[no-untyped-call]
                yield
        finally:
            ACTIVE_RECORDING.reset(token)


ACTIVE_RECORDING: ContextVar[KernelRecording | None] = ContextVar("ACTIVE_RECORDING", default=None)
