"""Uninitialized tensors filled with NaN, so that reading them before writing is detected."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def poison_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*shape: Any, **kind: Any) -> Tensor:
        memory = make(*shape, **kind)
        return memory.fill_(float("nan")) if memory.is_floating_point() else memory
    return made
