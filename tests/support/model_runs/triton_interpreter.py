"""Triton's interpreter for tests: matrix products whose rows depend neither on the processor nor on other rows, and
less work for every operation.

The interpreter multiplies by `numpy.matmul`, which is OpenBLAS. With OpenBLAS's kernels for AVX2 the bits of a row
depend on its index in the matrix, and kernels for another processor give other bits everywhere.
"""

import math
from dataclasses import replace
from functools import cache
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
    """Replace the matrix products, share types, and patch Triton's language once per launch."""
    from triton import knobs  # noqa: PLC0415 - available on Linux only
    from triton.runtime import interpreter  # noqa: PLC0415

    interpreter.InterpreterBuilder.create_dot = create_dot
    # By default sums and products are computed again in 64 bits; they are compared only where `debug` is set.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    if knobs.runtime.interpret:  # and no kernel is compiled in this process
        share_types(interpreter)
    patch_language_once_per_launch(interpreter)


def share_types(interpreter: Any) -> None:
    """Make tensors of one shape share what depends on the shape and the element type alone.

    By default every operation makes these objects again, which takes half of its time.
    """
    from triton.language import core, semantic  # noqa: PLC0415 - available on Linux only

    attributes_by_type = dict[tuple[str, tuple[int, ...]], dict[str, Any]]()
    numpy_types = dict[str, Any]()
    make_block_type, get_numpy_type = core.block_type.__init__, interpreter._get_np_dtype
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def make_shared_block_type(self: Any, element_type: Any, shape: Any) -> None:
        key = element_type.name, tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        if (attributes := attributes_by_type.get(key)) is None:
            make_block_type(self, element_type, shape)
            attributes_by_type[key] = dict(self.__dict__)
        else:
            self.__dict__.update(attributes, element_ty=element_type)

    @cache
    def make_shape(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))

    def make_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 - Triton's name
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = make_shape(tuple(type.shape.values) if type.is_block() else ())

    def get_shared_numpy_type(type: Any) -> Any:  # noqa: A002
        name = type.scalar.name
        if name not in numpy_types:
            numpy_types[name] = get_numpy_type(type)
        return numpy_types[name]

    def broadcast_unless_alike(self: Any, left: Any, right: Any) -> Any:
        return (left, right) if left.shape is right.shape else broadcast(self, left, right)

    core.block_type.__init__, core.tensor.__init__ = make_shared_block_type, make_tensor
    semantic.TritonSemantic.broadcast_impl_value = broadcast_unless_alike
    interpreter._get_np_dtype = get_shared_numpy_type


def patch_language_once_per_launch(interpreter: Any) -> None:
    """Patch Triton's language once per launch.

    By default the interpreter patches the language at every function call, which takes a fifth of the time.
    """
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

    interpreter._patch_lang, interpreter._LangPatchScope.restore = patch_once, restore
