"""compressed-tensors as written by llm-compressor: packed integers, one integer per byte, or eight-bit floats.

Whether a weight is quantised follows from the stored tensors: weights named in `ignore` are stored unquantised.
weight_packed [out, in / n] and weight_zero_point [out / n, groups] in 32-bit words of n codes, weight_scale
[out, groups], weight_g_idx [in]. Only weights are read; activations are not quantised, even if the checkpoint asks for
it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shard.json_config import Given
from shard.quantization.format import Coded, Slice, Tensors
from shard.quantization.fp8 import ACTIVATIONS
from shard.quantization.gptq import check_groups
from shard.quantization.packing import BITS, cover, cut, integers, slab, unpacked
from shard.quantization.scaled import FLOAT8, Block, bytes_of, floats, read_scales
from shard.quantization.settings import block

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
STRATEGIES = ("tensor", "channel", "group", "block")


@dataclass(frozen=True, slots=True)
class Compressed:
    kinds: tuple[str, ...]
    bits: tuple[int, ...]
    block: Block | None

    @property
    def note(self) -> str:
        widths = " and ".join(map(str, self.bits))
        return f"compressed-tensors, {' and '.join(self.kinds)}, {widths} bits, activations not quantised"

    def stands_for(self, tensors: Tensors, name: str) -> bool:
        stored = tensors.stored(name)
        if stored is None:
            return name.endswith(".weight") and tensors.stored(f"{name}_packed") is not None
        return stored[0] in {*FLOAT8, torch.int8}

    def read(self, tensors: Tensors, wanted: Slice) -> Coded:
        scales, groups = read_scales(tensors, f"{wanted.name}_scale", wanted, self.block)
        stored = tensors.stored(wanted.name)
        if stored is None:
            return read_packed(tensors, wanted, scales, read_order(tensors, wanted, scales, groups))
        if stored[0] in FLOAT8:
            return floats(tensors, wanted, stored[0], scales, groups)
        return read_bytes(tensors, wanted, scales, read_order(tensors, wanted, scales, groups))

    def spare(self, tensors: Tensors, name: str) -> bool:  # noqa: ARG002 - the name decides
        return name.endswith((*ACTIVATIONS, ".input_zero_point", ".input_g_idx"))


def read_packed(tensors: Tensors, wanted: Slice, scales: Tensor, groups: Tensor) -> Coded:
    tensors.ignore(f"{wanted.name}_shape")  # known from config.json
    name, (outputs, inputs) = f"{wanted.name}_packed", wanted.shape
    bits = packed_bits(tensors, name, wanted.shape)
    per_word = 32 // bits
    packed = slab(tensors, name, (outputs, -(-inputs // per_word)), wanted.rows, cover(wanted.columns, per_word))

    def codes(first: int, last: int) -> Tensor:
        return cut(unpacked(packed[first:last], bits), wanted.columns, per_word)

    return integers(codes, read_zeros(tensors, wanted, scales, bits), scales, groups, bits)


def read_bytes(tensors: Tensors, wanted: Slice, scales: Tensor, groups: Tensor) -> Coded:
    held = bytes_of(tensors, wanted, torch.int8)

    def codes(first: int, last: int) -> Tensor:
        return held[first:last].view(torch.uint8) ^ 128  # adds 128: unsigned codes

    return integers(codes, read_zeros(tensors, wanted, scales, 8), scales, groups, 8)


def packed_bits(tensors: Tensors, name: str, shape: tuple[int, int]) -> int:
    """Return the bits per code, which may differ between groups of weights, from the stored width."""
    stored, (outputs, inputs) = tensors.stored(name), shape
    widths = {(outputs, -(-inputs * bits // 32)): bits for bits in BITS}
    if stored is None or stored[1] not in widths:
        supported = " or ".join(f"{list(known)} ({bits} bits)" for known, bits in widths.items())
        raise ValueError(f"{name} is {list(stored[1]) if stored else 'missing'}; "
                         f"supported for a weight of {list(shape)}: {supported}")
    return widths[stored[1]]


def read_zeros(tensors: Tensors, wanted: Slice, scales: Tensor, bits: int) -> Tensor:
    """Return the zero points of unsigned codes, `[rows, groups]`: signed ones are raised by half the range of codes."""
    name, half = f"{wanted.name}_zero_point", 1 << (bits - 1)
    stored = tensors.stored(name)
    if stored is None:
        return torch.full_like(scales, half, dtype=torch.int16)
    if stored[0] != torch.int32:
        return read_scales(tensors, name, wanted, None, stored[0])[0].to(torch.int16) + half
    per_word = 32 // bits
    packed = tensors.rows(name, (-(-wanted.shape[0] // per_word), scales.shape[1]), cover(wanted.rows, per_word),
                          torch.int32)
    return cut(unpacked(packed.t(), bits), wanted.rows, per_word).t().to(torch.int16)


def read_order(tensors: Tensors, wanted: Slice, scales: Tensor, groups: Tensor) -> Tensor:
    """Return the group of each column, also if columns were reordered. Some tools write -1 if they were not."""
    name = f"{wanted.name}_g_idx"
    stored = tensors.stored(name)
    if stored is None:
        return groups
    order = tensors.rows(name, (wanted.shape[1],), wanted.columns, stored[0])
    return groups if bool((order == -1).all()) else check_groups(name, order, scales.shape[1])


def read_compressed(given: Given) -> Compressed:
    kind = given.one_of("format", given.get("format"), FORMATS)
    sparsity, listed = given.within("sparsity_config"), given.within("config_groups")
    sparsity.one_of("format", sparsity.get("format") or "dense", ("dense",))
    groups = [read_group(listed.within(name), kind) for name in sorted(listed.values)]
    if not groups:
        raise ValueError(f"{given.source}: config_groups names no quantised weights")
    blocks = sorted({group.block for group in groups if group.block})
    if len(blocks) > 1:
        raise given.refusal(f"block_structure {' beside '.join(map(str, blocks))}", ["one for all"])
    return Compressed(tuple(sorted({group.kind for group in groups})), tuple(sorted({group.bits for group in groups})),
                      blocks[0] if blocks else None)


class Group(NamedTuple):
    """Settings of a group of weights that are quantised in the same way."""

    kind: str
    bits: int
    block: Block | None


def read_group(given: Given, kind: str) -> Group:
    """Read one of `config_groups`. `kind`: default format."""
    weights = given.within("weights")
    type_of = weights.one_of("type", weights.get("type") or "int", ("int", "float"))
    weights.one_of("strategy", weights.get("strategy") or "tensor", STRATEGIES)
    return Group(given.one_of("format", given.get("format") or kind, FORMATS),
                 weights.one_of("num_bits", weights.get("num_bits"), BITS if type_of == "int" else (8,)),
                 block(weights, "block_structure"))
