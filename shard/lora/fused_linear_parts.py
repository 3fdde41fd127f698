"""Slices of checkpoint weights that one rank's linear, which may be fused, consists of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class WeightSlice:
    """Slice of one checkpoint weight within a rank's linear."""

    module: str
    shape: tuple[int, int]  # [out, in], of all ranks together
    outputs: range  # consecutive in the linear's output; those past the end of the weight are zeros
    inputs: range


@dataclass(frozen=True, slots=True)
class FusedLinearPart:
    """Consecutive slices of one checkpoint weight within a rank's linear."""

    weight_slices: tuple[WeightSlice, ...]
    output_columns: range  # of the linear's output

    @property
    def module(self) -> str:
        return self.weight_slices[0].module

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight_slices[0].shape

    def slice_lora_matrices(self, lora_a: Tensor, lora_b: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's slices of an adapter's matrices."""
        inputs, outputs = self.weight_slices[0].inputs, torch.zeros(len(self.output_columns), lora_b.shape[1])
        first = 0
        for portion in self.weight_slices:
            held = lora_b[portion.outputs.start:portion.outputs.stop]
            outputs[first:first + len(held)] = held
            first += len(portion.outputs)
        return lora_a[:, inputs.start:inputs.stop], outputs


def group_slices_into_parts(weight_slices: Sequence[WeightSlice]) -> list[FusedLinearPart]:
    parts: list[FusedLinearPart] = []
    first = 0
    for _, group in groupby(weight_slices, key=lambda portion: portion.module):
        same = tuple(group)
        last = first + sum(len(portion.outputs) for portion in same)
        parts.append(FusedLinearPart(same, range(first, last)))
        first = last
    return parts
