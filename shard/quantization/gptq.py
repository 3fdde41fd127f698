"""GPTQ as written by AutoGPTQ and GPTQModel: codes packed along the inputs, zero points along the outputs.

qweight [in / n, out] and qzeros [groups, out / n] in 32-bit words of n codes; scales [groups, out]; g_idx [in], the
group of each input if inputs were reordered.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shard.json_config import Given
from shard.quantization.format import Coded, Slice, Tensors
from shard.quantization.packing import BITS, cover, cut, integers, regular, slab, unpacked
from shard.quantization.settings import group_size

ZEROS_LESS_ONE = "gptq"  # the older format, which stores zero points minus one
FORMATS = (ZEROS_LESS_ONE, "gptq_v2")


@dataclass(frozen=True, slots=True)
class Gptq:
    bits: int
    group_size: int
    zeros_added: int

    @property
    def note(self) -> str:
        return f"GPTQ, {self.bits} bits, {'no groups' if self.group_size == -1 else f'groups of {self.group_size}'}"

    def stands_for(self, tensors: Tensors, name: str) -> bool:
        return name.endswith(".weight") and tensors.stored(f"{name.removesuffix('.weight')}.qweight") is not None

    def read(self, tensors: Tensors, wanted: Slice) -> Coded:
        per_word, (outputs, inputs) = 32 // self.bits, wanted.shape
        packed = slab(tensors, f"{wanted.base}.qweight", (-(-inputs // per_word), outputs),
                      cover(wanted.columns, per_word), wanted.rows)

        def codes(first: int, last: int) -> Tensor:
            return cut(unpacked(packed[:, first:last].t(), self.bits), wanted.columns, per_word)

        return integers(codes, self._zeros(tensors, wanted), self._scales(tensors, wanted),
                        self._groups(tensors, wanted), self.bits)

    def spare(self, tensors: Tensors, name: str) -> bool:
        """Return whether the tensor is a bias of zeros: some tools write one for every linear."""
        stored = tensors.stored(name)
        return name.endswith(".bias") and stored is not None and not tensors.whole(name, stored[1]).any()

    def _num_groups(self, wanted: Slice) -> int:
        return 1 if self.group_size == -1 else -(-wanted.shape[1] // self.group_size)

    def _zeros(self, tensors: Tensors, wanted: Slice) -> Tensor:
        per_word = 32 // self.bits
        packed = tensors.columns(
            f"{wanted.base}.qzeros", (self._num_groups(wanted), -(-wanted.shape[0] // per_word)),
            cover(wanted.rows, per_word), torch.int32)
        return cut(unpacked(packed, self.bits), wanted.rows, per_word).t().to(torch.int16) + self.zeros_added

    def _scales(self, tensors: Tensors, wanted: Slice) -> Tensor:
        shape = (self._num_groups(wanted), wanted.shape[0])
        return tensors.columns(f"{wanted.base}.scales", shape, wanted.rows, torch.float32).t().contiguous()

    def _groups(self, tensors: Tensors, wanted: Slice) -> Tensor:
        name, inputs = f"{wanted.base}.g_idx", wanted.shape[1]
        if tensors.stored(name) is None:
            return regular(wanted, inputs if self.group_size == -1 else self.group_size, tensors.device)
        return check_groups(name, tensors.rows(name, (inputs,), wanted.columns, torch.int32), self._num_groups(wanted))


def check_groups(name: str, groups: Tensor, num_groups: int) -> Tensor:
    if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < num_groups:
        raise ValueError(f"{name} names groups from {int(groups.min())} to {int(groups.max())}; there are {num_groups}")
    return groups.long()


def read_gptq(given: Given) -> Gptq:
    bits = given.one_of("bits", given.get("bits"), BITS)
    form = given.one_of("checkpoint_format", given.get("checkpoint_format", "format") or ZEROS_LESS_ONE, FORMATS)
    given.one_of("pack_dtype", given.get("pack_dtype") or "int32", ("int32",))
    if varied := [rule for rule in given.within("dynamic").values if not rule.startswith("-:")]:
        raise ValueError(f"{given.source}: dynamic gives {varied[0]} a quantisation of its own, which is not supported"
                         f"; supported: one for all, and rules that leave weights out (-:)")
    return Gptq(bits, group_size(given, given.get("group_size")), zeros_added=int(form == ZEROS_LESS_ONE))
