"""Pairs of a quantized checkpoint and the same model with dequantized weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from support.checkpoints.quantized_checkpoints import QuantizationTool, write_quantized_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import run_forward_on_ranks
from torch import Tensor

from shard.layers import embedding, parallel_linear

KERNEL_ERROR = 5e-4  # of the largest logit
MODEL_SIZES = {"intermediate_size": 96, "num_key_value_heads": 4}  # the slices of two ranks cut across groups and words


def make_checkpoint_pair(tmp_path_factory: pytest.TempPathFactory, tool: QuantizationTool, *,
                         head: bool = False) -> tuple[Path, Path]:
    base = tmp_path_factory.getbasetemp()
    plain = make_tiny_checkpoint(base, "llama", **MODEL_SIZES)
    return tuple(write_quantized_checkpoint(plain, tool, base, is_dequantized=numbers, quantizes_head=head)
                 for numbers in (False, True))


def compute_logits(folder: Path, num_ranks: int, dtype: torch.dtype = torch.float32) -> Tensor:
    first = run_forward_on_ranks(folder, dtype, num_ranks)[0].logits
    assert first is not None
    return first


@contextmanager
def disable_native_kernels() -> Iterator[None]:
    """Read linears as on a machine without compiled kernels."""
    with (patch.object(parallel_linear, "load_library", lambda: None),
          patch.object(embedding, "load_library", lambda: None)):
        yield


def check_logits_are_identical(folders: tuple[Path, Path], num_ranks: int) -> None:
    """Compare logits of weights that torch dequantizes with those of the same weights as float32. Compiled kernels
    round the inputs of products to 16 bits, if they multiply the weights as they are."""
    quantized, reference = (compute_logits(folder, num_ranks) for folder in folders)
    torch.testing.assert_close(quantized, reference, rtol=0, atol=KERNEL_ERROR * float(reference.abs().max()))
    with disable_native_kernels():
        assert torch.equal(*(compute_logits(folder, num_ranks) for folder in folders))


def check_logits_are_close(folders: tuple[Path, Path], num_ranks: int) -> None:
    """Compare like `check_logits_are_identical`, for weights that torch multiplies as int8."""
    quantized, reference = (compute_logits(folder, num_ranks) for folder in folders)
    largest = float(reference.abs().max())
    torch.testing.assert_close(quantized, reference, rtol=0, atol=KERNEL_ERROR * largest)
    with disable_native_kernels():
        torch.testing.assert_close(compute_logits(folders[0], num_ranks), reference, rtol=1e-5, atol=1e-5 * largest)
