"""Choice of fused norms and rotary embedding: Triton's kernels on GPUs, compiled ones on CPUs, or none."""

from types import ModuleType

import torch

from shard.native.library import load_library
from shard.ops import native_fused_ops
from shard.ops.triton_support import import_kernels


def import_fused_ops(device: torch.device) -> ModuleType | None:
    """Return `fused_ops` or `native_fused_ops`; None where torch's operations are to be used."""
    if device.type == "cpu":
        return None if load_library() is None else native_fused_ops
    return import_kernels(device)
