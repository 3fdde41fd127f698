"""Settings of cuBLAS for `--exact`: docs/exactness.md, "cuBLAS splits no sums".

Without workspace for the parts of a sum cuBLAS does not split it.
"""

import os

import torch

# in KiB: eight buffers of 16, and 1
WORKSPACE_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def disable_split_k() -> None:
    """Keep cuBLAS from splitting sums. Call this before the first product: cuBLAS reads its settings once."""
    os.environ.update(WORKSPACE_VARIABLES)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    matmul = torch.backends.cuda.matmul
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        setattr(matmul, name, (False, False))  # no sums of reduced precision, no split-k
