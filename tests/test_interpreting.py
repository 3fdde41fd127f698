"""Kernels under Triton's interpreter give the same bits on any processor, whatever library NumPy multiplies with."""

import numpy as np
import pytest
import torch
from support.model_runs.triton_interpreter import row_wise_product
from torch import Tensor

pytest.importorskip("triton")  # available on Linux only

import triton
import triton.language as tl

SIZE = 64


@triton.jit
def matmul_kernel(a, b, product, SIZE: tl.constexpr):  # noqa: N803 - known when a kernel is compiled
    offsets = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(product + offsets, tl.dot(tl.load(a + offsets), tl.load(b + offsets), input_precision="ieee"))


def run_matmul_kernel(a: Tensor, b: Tensor) -> Tensor:
    product = torch.empty(SIZE, SIZE)
    matmul_kernel[1,](a, b, product, SIZE)
    return product


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_row_result_does_not_depend_on_its_place_or_other_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, SIZE, SIZE).to(dtype).unbind()
    product = run_matmul_kernel(a, b)
    for shift in (1, 5):
        assert torch.equal(run_matmul_kernel(a.roll(shift, 0), b), product.roll(shift, 0))
    row_and_zeros = torch.cat([a[7:8], torch.zeros(SIZE - 1, SIZE, dtype=dtype)])
    assert torch.equal(run_matmul_kernel(row_and_zeros, b)[0], product[7])
    torch.testing.assert_close(product.double(), a.double() @ b.double(), rtol=0, atol=1e-4)


def test_terms_are_added_in_a_fixed_order() -> None:
    """Four terms are added half by half; the values are such that another order gives another sum."""
    terms = np.float32([1.0, 1e8, 2.0, -1e8])
    ((total,),) = row_wise_product(terms[None, :], np.ones((4, 1), np.float32), np.dtype(np.float32))
    assert total == (terms[0] + terms[2]) + (terms[1] + terms[3]) == 3.0
    assert terms[0] + terms[1] + terms[2] + terms[3] != 3.0
