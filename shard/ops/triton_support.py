"""Choice of Triton kernels for layers: on GPUs, if Triton is installed."""

from importlib import import_module
from importlib.util import find_spec
from shutil import which
from types import ModuleType

import torch


def has_triton() -> bool:
    """Return whether Triton can be used. It is installed with torch for CUDA, and needs a C compiler."""
    return find_spec("triton") is not None and any(map(which, ("gcc", "clang")))


def import_kernels(device: torch.device, module: str = "shard.ops.fused_ops") -> ModuleType | None:
    """Import and return a module that needs Triton; None if `device` cannot use it."""
    return import_module(module) if device.type == "cuda" and has_triton() else None
