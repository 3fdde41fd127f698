"""Tensor-parallel linears: a rank holds some rows of a weight, or some columns and then the ranks' results are summed.

The functions read this rank's slices, whose ranges the caller chooses, and pick the implementation.
docs/concepts/exactness.md, "Collectives of a step", says when a step sums.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, float32

from shard.checkpoint.reader import CheckpointReader, RowSelection
from shard.native.library import load_library
from shard.ops.activated_linear import (
    GATED_ACTIVATIONS,
    GatedLinear,
    LinearWithGelu,
    LinearWithSeparateGelu,
    NativeGatedLinear,
    PackedGatedLinear,
    PackedLinearWithGelu,
    apply_and_round,
)
from shard.ops.int8_linear import Int8Linear
from shard.ops.native_int4_linear import NativeInt4Linear, can_keep_int4
from shard.ops.native_int8_linear import AmxInt8Linear, NativeInt8Linear, make_int8_linear
from shard.ops.native_linear import (
    Bf16RowsLinear,
    NativeLinear,
    choose_weight_storage_dtype,
    has_native_matmul,
    make_native_mixed_dtype_linear,
)
from shard.ops.triton_support import import_kernels
from shard.ops.unquantized_linear import Linear, make_linear, should_pack
from shard.parallel.group import RankGroup
from shard.quantization.quantization_format import MatrixSlice

QuantizedLinear = Int8Linear | NativeInt8Linear | AmxInt8Linear | NativeInt4Linear
FLOAT32_LINEARS = (Int8Linear, NativeInt8Linear, NativeInt4Linear, NativeLinear, Bf16RowsLinear)  # can return float32


@dataclass(frozen=True, slots=True)
class LinearRows:
    """Some outputs (rows of the weight) of a linear in the checkpoint."""

    name: str
    shape: tuple[int, int]  # [out, in], of all ranks together
    rows: range
    has_bias: bool
    transposed: bool = False  # whether the file holds the weight transposed, [in, out]

    @property
    def weight_rows(self) -> RowSelection:
        return RowSelection(f"{self.name}.weight", self.shape, self.rows, self.transposed)

    @property
    def matrix_slice(self) -> MatrixSlice:
        return MatrixSlice(f"{self.name}.weight", self.shape, self.rows, range(self.shape[1]))


def read_bias(weights: CheckpointReader, linear_rows: Sequence[LinearRows]) -> Tensor | None:
    if not linear_rows[0].has_bias:
        return None
    return weights.read_stacked_rows([RowSelection(f"{part.name}.bias", part.shape[:1], part.rows)
                                      for part in linear_rows])


def load_quantized_linear(weights: CheckpointReader, matrix_slices: Sequence[MatrixSlice],
                     bias: Tensor | None) -> QuantizedLinear | None:
    """Return a linear that keeps its weights quantized; None if they are not to be kept so."""
    library = load_library() if weights.device.type == "cpu" else None
    quantized_slices = weights.read_quantized_slices(matrix_slices, None if library is None else can_keep_int4)
    if quantized_slices is None:
        return None
    if library is None:
        return Int8Linear(quantized_slices, bias, weights.dequant_buffers)
    if can_keep_int4(quantized_slices):
        return NativeInt4Linear(quantized_slices, bias, library)
    return make_int8_linear(quantized_slices, bias, weights.dtype, library)


def load_linear(weights: CheckpointReader, linear_rows: Sequence[LinearRows]) -> Linear:
    """Return one linear for several of the checkpoint, without adapters."""
    bias = read_bias(weights, linear_rows)
    quantized_linear = load_quantized_linear(weights, [part.matrix_slice for part in linear_rows], bias)
    return load_float_linear(weights, linear_rows, bias) if quantized_linear is None else quantized_linear


def load_float_linear(weights: CheckpointReader, linear_rows: Sequence[LinearRows], bias: Tensor | None) -> Linear:
    """Return one linear like `load_linear`, of weights that are not kept quantized."""
    weight_rows = [part.weight_rows for part in linear_rows]
    return make_float_linear(weights, [rows.name for rows in weight_rows],
                             partial(weights.read_stacked_rows, weight_rows), bias)


def make_float_linear(weights: CheckpointReader, names: Iterable[str], read_weight: Callable[..., Tensor],
                      bias: Tensor | None = None) -> Linear:
    """Return a linear of the weight that `read_weight(dtype=..., scratch=...)` returns, of these tensors. Weights of 16
    bits that are kept so are read so: to widen and narrow them again takes longer than all else."""
    kept_dtype = choose_weight_storage_dtype(weights.find_common_dtype(names), weights.dtype, weights.device)
    if kept_dtype is not None:
        return make_native_mixed_dtype_linear(read_weight(dtype=kept_dtype, scratch=True), bias)
    return make_linear(read_weight(dtype=None, scratch=should_pack(weights.dtype, weights.device)), bias)


def with_float32_output(linear: Linear) -> Linear:
    """Return the linear with outputs in float32, if it can give them."""
    return linear.forward_float32 if isinstance(linear, FLOAT32_LINEARS) else linear


def wrap_with_adapters(weights: CheckpointReader, linear_rows: Sequence[LinearRows], linear: Linear) -> Linear:
    return weights.lora_targets.wrap_linear(linear, [part.matrix_slice for part in linear_rows])


def load_column_parallel_linear(weights: CheckpointReader, linear_rows: Sequence[LinearRows]) -> Linear:
    """Return one fused linear for several of the checkpoint, their outputs concatenated."""
    return wrap_with_adapters(weights, linear_rows, load_linear(weights, linear_rows))


def load_linear_with_gelu(
        weights: CheckpointReader, linear_rows: LinearRows, approximate: str,
) -> LinearWithGelu | PackedLinearWithGelu | LinearWithSeparateGelu:
    # An adapter's update is added before the activation, and no compiled kernel has the activation fused into it.
    if weights.lora_targets.is_enabled or has_native_matmul(weights.dtype, weights.device):
        linear = with_float32_output(load_linear(weights, [linear_rows]))
        return LinearWithSeparateGelu(wrap_with_adapters(weights, [linear_rows], linear), approximate)
    packed = should_pack(weights.dtype, weights.device)
    linear_class = PackedLinearWithGelu if packed else LinearWithGelu
    return linear_class(weights.read_stacked_rows([linear_rows.weight_rows], scratch=packed),
                        read_bias(weights, [linear_rows]), approximate)


def load_gated_linear(weights: CheckpointReader, gate: LinearRows, up: LinearRows,
                      activation: str = "silu") -> GatedLinear | NativeGatedLinear | PackedGatedLinear:
    """`activation` is a key in GATED_ACTIVATIONS."""
    variants = GATED_ACTIVATIONS[activation]
    exact_and_rounded = partial(apply_and_round, dtype=weights.dtype, activation=variants.exact)
    bias = read_bias(weights, [gate, up])
    unwrapped: Linear | None = load_quantized_linear(weights, [gate.matrix_slice, up.matrix_slice], bias)
    if unwrapped is None and has_native_matmul(weights.dtype, weights.device):
        unwrapped = load_float_linear(weights, [gate, up], bias)
    if unwrapped is not None:
        linear = wrap_with_adapters(weights, [gate, up], with_float32_output(unwrapped))
        if weights.device.type == "cpu" and (library := load_library()) is not None:
            return NativeGatedLinear(linear, variants.native, weights.dtype, library)
        return GatedLinear(linear, exact_and_rounded)
    if not should_pack(weights.dtype, weights.device):
        fused_kernels = import_kernels(weights.device)
        activate = variants.fast if fused_kernels is None else fused_kernels.GATED_ACTIVATIONS[activation]
        return GatedLinear(load_column_parallel_linear(weights, [gate, up]), activate)
    if weights.dtype == float32:  # faster than fused: tests/shard/ops/test_activations.py
        return GatedLinear(load_column_parallel_linear(weights, [gate, up]), variants.exact)
    if weights.lora_targets.is_enabled:  # an adapter's update is added before the activation
        return GatedLinear(load_column_parallel_linear(weights, [gate, up]), exact_and_rounded)
    gate_weight, up_weight = (weights.read_stacked_rows([part.weight_rows]) for part in (gate, up))
    gate_bias, up_bias = (read_bias(weights, [part]) for part in (gate, up))
    return PackedGatedLinear(gate_weight, up_weight, gate_bias, up_bias, variants.onednn_fused)


@dataclass(frozen=True, slots=True)
class RowParallelLinear:
    """Linear of which each rank holds some columns of the weight; the ranks' results are summed."""

    linear: Linear  # takes this rank's slice of the inputs; callers that sum several in one all-reduce use it directly
    group: RankGroup

    def __call__(self, x: Tensor) -> Tensor:
        return self.group.all_reduce_sum(self.linear(x))


def load_row_parallel_linear(weights: CheckpointReader, group: RankGroup, name: str, shape: tuple[int, int],
                             columns: range, *, bias: bool, transposed: bool = False) -> RowParallelLinear:
    """Return a row-parallel linear. Only rank 0 holds the bias, so that it is added once.

    `transposed`: the file holds the weight transposed, [in, out].
    """
    full_bias = weights.read_tensor(f"{name}.bias", shape[:1]) if bias else None
    rank_bias = full_bias if group.rank == 0 else None
    matrix_slice = MatrixSlice(f"{name}.weight", shape, range(shape[0]), columns)
    linear: Linear | None = None if transposed else load_quantized_linear(weights, [matrix_slice], rank_bias)
    if linear is None:
        name = matrix_slice.weight_name
        linear = make_float_linear(weights, [name], partial(weights.read_columns, name, shape, columns,
                                                            transposed=transposed), rank_bias)
    # An adapter's update is a sum over the inputs, too, so each rank adds its part before the all-reduce.
    return RowParallelLinear(weights.lora_targets.wrap_linear(linear, [matrix_slice]), group)
