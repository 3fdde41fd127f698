"""Pairs of a quantised checkpoint and the same model with dequantised weights."""

from pathlib import Path

import pytest
import torch
from support.quantized_checkpoints import Tool, written
from support.small_checkpoints import tiny_checkpoint
from torch import Tensor

from tests.shard.forward import outcomes

SIZES = {"intermediate_size": 96, "num_key_value_heads": 4}  # the slices of two ranks cut across groups and words


def pair(tmp_path_factory: pytest.TempPathFactory, tool: Tool, *, head: bool = False) -> tuple[Path, Path]:
    base = tmp_path_factory.getbasetemp()
    plain = tiny_checkpoint(base, "llama", **SIZES)
    return tuple(written(plain, tool, base, dequantised=numbers, head=head) for numbers in (False, True))


def logits(folder: Path, num_ranks: int, dtype: torch.dtype = torch.float32) -> Tensor:
    first = outcomes(folder, dtype, num_ranks)[0].logits
    assert first is not None
    return first


def has_the_same_bits(folders: tuple[Path, Path], num_ranks: int) -> None:
    quantised, reference = (logits(folder, num_ranks) for folder in folders)
    assert torch.equal(quantised, reference)


def agrees_closely(folders: tuple[Path, Path], num_ranks: int) -> None:
    quantised, reference = (logits(folder, num_ranks) for folder in folders)
    torch.testing.assert_close(quantised, reference, rtol=1e-5, atol=1e-5 * float(reference.abs().max()))
