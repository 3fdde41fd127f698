"""What cuBLAS is told where a row's product is to be the same however many rows there are.

Left to itself it cuts a sum into as many parts as keep the card busy, which follows from the number of rows. Without
room to keep parts in there are none. Whether that is enough on the card at hand is for the gate at start to say.
"""

import os

import torch

ROOM = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}  # in KiB: eight times 16, and 1


def add_up_in_one_order() -> None:
    """Before the first product: cuBLAS looks once."""
    os.environ.update(ROOM)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    matmul = torch.backends.cuda.matmul
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        setattr(matmul, name, (False, False))  # neither sums of fewer bits nor sums in parts
