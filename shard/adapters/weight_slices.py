"""Slices of checkpoint weights that one rank's linear, which may be fused, consists of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Portion:
    """Slice of one checkpoint weight within a rank's linear."""

    module: str
    shape: tuple[int, int]  # [out, in], of all ranks together
    outputs: range  # consecutive in the linear's output; those past the end of the weight are zeros
    inputs: range


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive slices of one checkpoint weight within a rank's linear."""

    portions: tuple[Portion, ...]
    columns: range  # of the linear's output

    @property
    def module(self) -> str:
        return self.portions[0].module

    @property
    def shape(self) -> tuple[int, int]:
        return self.portions[0].shape

    def mine(self, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's slices of an adapter's matrices."""
        inputs, outputs = self.portions[0].inputs, torch.zeros(len(self.columns), up.shape[1])
        first = 0
        for portion in self.portions:
            held = up[portion.outputs.start:portion.outputs.stop]
            outputs[first:first + len(held)] = held
            first += len(portion.outputs)
        return down[:, inputs.start:inputs.stop], outputs


def parts_of(portions: Sequence[Portion]) -> list[Part]:
    found: list[Part] = []
    first = 0
    for _, group in groupby(portions, key=lambda portion: portion.module):
        same = tuple(group)
        last = first + sum(len(portion.outputs) for portion in same)
        found.append(Part(same, range(first, last)))
        first = last
    return found
