"""Settings of cuBLAS that make a row's product the same however many rows there are.

By default cuBLAS splits a sum into as many parts as keep the card busy, which depends on the number of rows. Without
workspace for the parts it does not split. Whether that is enough on a given card is checked by the gate at start.
"""

import os

import torch

# in KiB: eight buffers of 16, and 1
WORKSPACE_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def disable_split_sums() -> None:
    """Keep cuBLAS from splitting sums. Call this before the first product: cuBLAS reads its settings once."""
    os.environ.update(WORKSPACE_VARIABLES)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    matmul = torch.backends.cuda.matmul
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        setattr(matmul, name, (False, False))  # no sums of reduced precision, no split-k
