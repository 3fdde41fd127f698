"""Uninitialized tensors filled with NaN, so that reading them before writing is detected."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def fill_uninitialized_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("cpu"):  # torch notes which functions obey this, for good, when it is first used
        torch.empty(0)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, make_nan_filling(getattr(torch, name)))


def make_nan_filling(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def allocate_filled(*shape: Any, **options: Any) -> Tensor:
        tensor = allocate(*shape, **options)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor
    return allocate_filled
