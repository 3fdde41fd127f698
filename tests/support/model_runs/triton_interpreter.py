"""Matrix products for Triton's interpreter whose rows depend neither on the processor nor on other rows.

The interpreter multiplies by `numpy.matmul`, which is OpenBLAS. With OpenBLAS's kernels for AVX2 the bits of a row
depend on its index in the matrix, and kernels for another processor give other bits everywhere.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]


def row_wise_product(a: Matrix, b: Matrix, dtype: np.dtype[Any]) -> Matrix:
    """Return a @ b of [rows, inner] and [inner, columns]. Halves of the terms are added to one another until one is
    left, and every operation treats all elements alike. The inner size is a power of two, as all of Triton's are."""
    terms = a.T.astype(dtype)[:, :, None] * b.astype(dtype)[:, None, :]  # [inner, rows, columns]
    assert len(terms).bit_count() == 1
    while (half := len(terms) // 2) > 0:
        terms = terms[:half] + terms[half:]
    return terms[0]


def create_dot(_: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
    """Replace `InterpreterBuilder.create_dot`: a @ b + d."""
    assert a.data.dtype.kind == b.data.dtype.kind == "f", "the interpreter keeps numbers of this type as integers"
    return type(d)(row_wise_product(a.data, b.data, d.data.dtype) + d.data, d.dtype.scalar)


def patch_interpreter() -> None:
    """Replace the matrix products, and patch Triton's language once per launch.

    By default the interpreter patches the language at every function call, which takes a fifth of the time.
    """
    from triton.runtime import interpreter  # noqa: PLC0415 - available on Linux only

    patched = set[int]()  # globals of functions that were called since the launch began
    patch_language, restore_language = interpreter._patch_lang, interpreter._LangPatchScope.restore

    def patch_once(function: Any) -> Any:
        if id(function.__globals__) in patched:
            return None
        patched.add(id(function.__globals__))
        return patch_language(function)

    def restore(scope: Any) -> None:
        """Restore Triton's language at the end of a launch."""
        patched.clear()
        restore_language(scope)

    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter._patch_lang, interpreter._LangPatchScope.restore = patch_once, restore
