"""Whether layers compute by kernels of ours: on GPUs, where Triton is there. Knows none of them."""

from importlib import import_module
from importlib.util import find_spec
from shutil import which
from types import ModuleType

import torch


def has_triton() -> bool:
    """It comes with torch for CUDA, and needs a compiler for C."""
    return find_spec("triton") is not None and any(map(which, ("gcc", "clang")))


def kernels(device: torch.device, module: str = "fused") -> ModuleType | None:
    """A module beside this one that needs Triton, if it is of use there."""
    return import_module(f"shard.layers.{module}") if device.type == "cuda" and has_triton() else None
