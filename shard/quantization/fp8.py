"""`quant_method` fp8: eight-bit floats with one scale per weight, per output or per block.

Only weights are quantised. Activations and KV cache are not, even if the checkpoint was made for that.
"""

from dataclasses import dataclass

from shard.json_config import Given
from shard.quantization.format import Coded, Slice, Tensors
from shard.quantization.scaled import FLOAT8, Block, floats, read_scales
from shard.quantization.settings import block

ACTIVATIONS = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".kv_scale", ".q_scale", ".output_scale")


@dataclass(frozen=True, slots=True)
class Fp8:
    block: Block | None

    @property
    def note(self) -> str:
        blocks = "" if self.block is None else f" in blocks of {self.block[0]} x {self.block[1]}"
        return f"fp8{blocks}, activations not quantised"

    def stands_for(self, tensors: Tensors, name: str) -> bool:
        stored = tensors.stored(name)
        return stored is not None and stored[0] in FLOAT8

    def read(self, tensors: Tensors, wanted: Slice) -> Coded:
        stored = tensors.stored(wanted.name)
        assert stored is not None
        inverse = f"{wanted.name}_scale_inv"  # despite the name a factor, not a divisor
        name = inverse if tensors.stored(inverse) else f"{wanted.name}_scale"
        return floats(tensors, wanted, stored[0], *read_scales(tensors, name, wanted, self.block))

    def spare(self, tensors: Tensors, name: str) -> bool:  # noqa: ARG002 - the name decides
        return name.endswith(ACTIVATIONS)


def read_fp8(given: Given) -> Fp8:
    given.one_of("fmt", given.get("fmt") or "e4m3", ("e4m3", "e5m2"))
    return Fp8(block(given, "weight_block_size"))
