"""Quantised weights of a model as one rank reads them, and the form in which they are kept.

Weights of linears whose codes fit into int8, with one scale per output, are kept as int8. All other quantised weights,
such as eight-bit floats, are dequantised when they are read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shard.quantization.format import Coded, Format, Slice, Tensors
from shard.quantization.int8 import read_int8

ON_LOAD = "int8"


class Quantized:
    def __init__(self, form: Format | None, on_load: str) -> None:
        """`form`: format of a quantised checkpoint. `on_load`: type to which unquantised weights are quantised while
        they are loaded (--quantize); empty: they are not."""
        if form is not None and on_load:
            raise ValueError(f"--quantize {on_load} is for weights that are not quantised, and these are: {form.note}; "
                             f"leave it out")
        self._form = form
        self._on_load = on_load
        self._kept: set[str] = set()
        self._expanded: set[str] = set()

    def fill(self, tensors: Tensors, wanted: Slice, target: Tensor) -> bool:
        """Dequantise the weight into `target` if it is quantised, and return whether it is."""
        if self._form is None or not self._form.stands_for(tensors, wanted.name):
            return False
        self._expanded.add(wanted.name)
        self._form.read(tensors, wanted).fill(target)
        return True

    def stands_for(self, tensors: Tensors, name: str) -> bool:
        return self._form is not None and self._form.stands_for(tensors, name)

    def codes(self, tensors: Tensors, parts: Sequence[Slice]) -> list[Coded] | None:
        """Return the codes for one linear of all parts; None if it is not to be kept quantised."""
        coded = self._read(tensors, parts)
        if coded is None or not all(part.keepable for part in coded):
            return None
        self._kept.update(part.name for part in parts)
        return coded

    def _read(self, tensors: Tensors, parts: Sequence[Slice]) -> list[Coded] | None:
        if self._on_load == ON_LOAD:
            return [read_int8(tensors, part) for part in parts]
        if self._form is None or not all(self._form.stands_for(tensors, part.name) for part in parts):
            return None
        return [self._form.read(tensors, part) for part in parts]

    def is_spare(self, tensors: Tensors, name: str) -> bool:
        return self._form is not None and self._form.spare(tensors, name)

    def note(self, dtype: torch.dtype) -> str:
        """Return one line about the quantised weights and how they are kept, or an empty string."""
        kept, expanded = len(self._kept), len(self._expanded - self._kept)
        if self._form is None:
            return f"{kept} weights quantised to {self._on_load} and kept so" if self._on_load else ""
        return (f"quantised checkpoint ({self._form.note}): {kept} weights kept as int8, {expanded} made into "
                f"{str(dtype).removeprefix('torch.')} at load")
