"""Device and threads of one rank, and the settings of cuBLAS for `--exact`."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

MAX_CORES_SHARED_WITH_ROUTER = 4  # up to this many cores the shards use all, and the router runs in between
# in KiB: eight buffers of 16, and 1; without workspace for the parts of a sum cuBLAS does not split it
WORKSPACE_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def choose_device(requested: str, rank: int, num_gpus: int) -> torch.device:
    """Return the device of a rank. Ranks are assigned to GPUs round-robin, so several may share one."""
    if requested == "cuda" and not num_gpus:
        raise ValueError("--device cuda needs a GPU that torch can use, there is none; use --device cpu")
    if requested == "cpu" or not num_gpus:
        return torch.device("cpu")
    return torch.device("cuda", rank % num_gpus)


def get_device_name(device: torch.device) -> str:
    """Return the kind of a device: cpu, or the name of the GPU's model."""
    return device.type if device.type == "cpu" else torch.cuda.get_device_name(device)


def count_ranks_on_gpu(rank: int, world_size: int, num_gpus: int) -> int:
    """Return how many ranks use this rank's GPU."""
    return len(range(rank % num_gpus, world_size, num_gpus))


def choose_num_threads(requested: int, num_cores: int, num_shards: int) -> int:
    """Return the number of threads of one shard on a CPU with `num_cores` cores."""
    num_free_cores = num_cores if num_cores <= MAX_CORES_SHARED_WITH_ROUTER else num_cores - 1
    return requested or max(1, num_free_cores // num_shards)


@contextmanager
def use_single_torch_thread() -> Iterator[None]:
    """Let torch compute in this thread alone. Helper threads would compete for the cores with those of the steps, and
    each side waits until all of its helpers are done."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_guard(device: torch.device) -> AbstractContextManager[object]:
    """Make the device current: Triton launches kernels on the thread's current device, not on that of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def disable_split_k() -> None:
    """Keep cuBLAS from splitting sums: docs/concepts/exactness.md, "cuBLAS splits no sums". Call this before the first
    product: cuBLAS reads its settings once."""
    os.environ.update(WORKSPACE_VARIABLES)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    matmul = torch.backends.cuda.matmul
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        setattr(matmul, name, (False, False))  # no sums of reduced precision, no split-k
