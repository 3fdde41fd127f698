"""Memory that nobody wrote yet is not a number: who reads it is found out."""

import pytest
import torch
from torch import Tensor


def poison_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


def poisoned(make: object) -> object:
    def made(*shape: object, **kind: object) -> Tensor:
        memory: Tensor = make(*shape, **kind)  # type: ignore[operator]
        return memory.fill_(float("nan")) if memory.is_floating_point() else memory
    return made
