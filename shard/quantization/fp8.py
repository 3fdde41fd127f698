"""`quant_method` fp8: eight-bit floats with one scale per weight, per output or per block.

Only weights are quantised. Activations and KV cache are not, even if the checkpoint was made for that.
"""

from dataclasses import dataclass

from shard.json_config import JsonConfig
from shard.quantization.format import MatrixSlice, QuantizedSlice, TensorReader
from shard.quantization.scaled_weights import (
    FLOAT8_DTYPES,
    BlockShape,
    read_block_shape,
    read_float8_slice,
    read_scales,
)

ACTIVATION_SCALE_SUFFIXES = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".kv_scale", ".q_scale",
                             ".output_scale")


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """Reader of fp8 weights (`QuantizationFormat`)."""

    block_shape: BlockShape | None

    @property
    def description(self) -> str:
        blocks = "" if self.block_shape is None else f" in blocks of {self.block_shape[0]} x {self.block_shape[1]}"
        return f"fp8{blocks}, activations not quantised"

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        stored = reader.find_dtype_and_shape(weight_name)
        return stored is not None and stored[0] in FLOAT8_DTYPES

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
        stored = reader.find_dtype_and_shape(matrix_slice.weight_name)
        assert stored is not None
        scale_inv_name = f"{matrix_slice.weight_name}_scale_inv"  # despite the name a factor, not a divisor
        name = scale_inv_name if reader.find_dtype_and_shape(scale_inv_name) else f"{matrix_slice.weight_name}_scale"
        return read_float8_slice(reader, matrix_slice, stored[0],
                                 *read_scales(reader, name, matrix_slice, self.block_shape))

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:  # noqa: ARG002 - the name decides
        return tensor_name.endswith(ACTIVATION_SCALE_SUFFIXES)


def parse_fp8_config(quant_config: JsonConfig) -> Fp8Format:
    quant_config.require_supported("fmt", quant_config.get("fmt") or "e4m3", ("e4m3", "e5m2"))
    return Fp8Format(read_block_shape(quant_config, "weight_block_size"))
