"""AWQ in AutoAWQ's gemm layout: codes packed along the outputs, in an interleaved order.

qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shard.json_config import Given
from shard.quantization.format import Coded, Slice, Tensors
from shard.quantization.packing import cover, cut, integers, regular, slab, unpacked
from shard.quantization.settings import group_size

PER_WORD = 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # by output, the index of its code among the eight of a word
VERSION = "gemm"


def in_order(words: Tensor) -> Tensor:
    """Unpack `[rows, words]` to `[rows, words * 8]`, in the order of the outputs."""
    places = torch.tensor(PLACES, device=words.device)
    return unpacked(words, 4).view(len(words), -1, PER_WORD).index_select(2, places).flatten(1)


@dataclass(frozen=True, slots=True)
class Awq:
    group_size: int

    @property
    def note(self) -> str:
        return f"AWQ, 4 bits, {'no groups' if self.group_size == -1 else f'groups of {self.group_size}'}"

    def stands_for(self, tensors: Tensors, name: str) -> bool:
        return name.endswith(".weight") and tensors.stored(f"{name.removesuffix('.weight')}.qweight") is not None

    def read(self, tensors: Tensors, wanted: Slice) -> Coded:
        outputs, inputs = wanted.shape
        group_size = inputs if self.group_size == -1 else self.group_size
        num_groups, num_words = -(-inputs // group_size), -(-outputs // PER_WORD)
        words = cover(wanted.rows, PER_WORD)
        packed = slab(tensors, f"{wanted.base}.qweight", (inputs, num_words), wanted.columns, words)
        zeros = tensors.columns(f"{wanted.base}.qzeros", (num_groups, num_words), words, torch.int32)
        scales = tensors.columns(f"{wanted.base}.scales", (num_groups, outputs), wanted.rows, torch.float32)

        def codes(first: int, last: int) -> Tensor:
            rows = range(wanted.rows.start + first, wanted.rows.start + last)
            held = cover(rows, PER_WORD)
            needed = packed[:, held.start - words.start:held.stop - words.start]
            return cut(in_order(needed), rows, PER_WORD).t().contiguous()

        return integers(codes, cut(in_order(zeros), wanted.rows, PER_WORD).t().to(torch.int16),
                        scales.t().contiguous(), regular(wanted, group_size, tensors.device), 4)

    def spare(self, tensors: Tensors, name: str) -> bool:  # noqa: ARG002 - no tensor may be left unread
        return False


def read_awq(given: Given) -> Awq:
    given.one_of("bits", given.get("bits", "w_bit"), (4,))
    given.one_of("version", str(given.get("version") or VERSION).lower(), (VERSION,))
    return Awq(group_size(given, given.get("group_size", "q_group_size")))
