"""Tensor-parallel linears: a rank holds some rows of a weight, or some columns and then the ranks' results are summed.

The functions read this rank's slices, whose ranges the caller chooses, and pick the implementation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, float32

from shard.adapters.weight_slices import Portion
from shard.checkpoint.reader import Rows, Weights
from shard.ops.activations import ActivatedLinear, PackedActivatedLinear, SeparatelyActivatedLinear
from shard.ops.gated_activations import GATINGS, GatedLinear, PackedGatedLinear, rounded_times, widened_times
from shard.ops.int8_linear import TiledLinear
from shard.ops.linear import Linear, make_linear, packs
from shard.ops.triton_support import kernels
from shard.parallel.group import Group
from shard.quantization.format import Slice


@dataclass(frozen=True, slots=True)
class Part:
    """Some outputs (rows of the weight) of a linear in the checkpoint."""

    name: str
    shape: tuple[int, int]  # [out, in], of all ranks together
    rows: range
    bias: bool
    turned: bool = False  # whether the file holds the weight transposed, [in, out]

    @property
    def weight_rows(self) -> Rows:
        return Rows(f"{self.name}.weight", self.shape, self.rows, self.turned)

    @property
    def slice(self) -> Slice:
        return Slice(f"{self.name}.weight", self.shape, self.rows, range(self.shape[1]))

    @property
    def portion(self) -> Portion:
        return Portion(self.name, self.shape, self.rows, range(self.shape[1]))

    @property
    def bias_rows(self) -> Rows:
        return Rows(f"{self.name}.bias", self.shape[:1], self.rows)


def read_bias(weights: Weights, parts: Sequence[Part]) -> Tensor | None:
    return weights.stack([part.bias_rows for part in parts]) if parts[0].bias else None


def tiled_linear(weights: Weights, parts: Sequence[Slice], bias: Tensor | None) -> TiledLinear | None:
    """Return a linear that keeps its weights quantized; None if they are not to be kept so."""
    coded = weights.codes(parts)
    return None if coded is None else TiledLinear(coded, bias, weights.buffers)


def adapted(weights: Weights, parts: Sequence[Part], linear: Linear) -> Linear:
    return weights.sites.linear(linear, [part.portion for part in parts])


def column_linear(weights: Weights, parts: Sequence[Part]) -> Linear:
    """Return one fused linear for several of the checkpoint, their outputs concatenated."""
    return adapted(weights, parts, plain_column_linear(weights, parts))


def plain_column_linear(weights: Weights, parts: Sequence[Part]) -> Linear:
    bias = read_bias(weights, parts)
    if (tiled := tiled_linear(weights, [part.slice for part in parts], bias)) is not None:
        return tiled
    brief = packs(weights.dtype, weights.device)
    return make_linear(weights.stack([part.weight_rows for part in parts], brief=brief), bias)


def activated_linear(
        weights: Weights, part: Part, approximate: str,
) -> ActivatedLinear | PackedActivatedLinear | SeparatelyActivatedLinear:
    if weights.sites.are_open:  # an adapter's update is added before the activation
        return SeparatelyActivatedLinear(column_linear(weights, [part]), approximate)
    packed = packs(weights.dtype, weights.device)
    kind = PackedActivatedLinear if packed else ActivatedLinear
    return kind(weights.stack([part.weight_rows], brief=packed), read_bias(weights, [part]), approximate)


def gated_linear(weights: Weights, gate: Part, up: Part, activation: str = "silu") -> GatedLinear | PackedGatedLinear:
    """`activation` is a key in GATINGS."""
    gating = GATINGS[activation]
    if (tiled := tiled_linear(weights, [gate.slice, up.slice], read_bias(weights, [gate, up]))) is not None:
        return GatedLinear(adapted(weights, [gate, up], tiled.unrounded),
                           partial(rounded_times, dtype=weights.dtype, times=gating.exact))
    if not packs(weights.dtype, weights.device):
        fused = kernels(weights.device)
        activate = gating.plain if fused is None else fused.GATINGS[activation]
        return GatedLinear(column_linear(weights, [gate, up]), activate)
    if weights.dtype == float32:  # faster than fused: tests/shard/ops/test_gated_activations.py
        return GatedLinear(column_linear(weights, [gate, up]), gating.exact)
    if weights.sites.are_open:  # an adapter's update is added before the activation
        return GatedLinear(column_linear(weights, [gate, up]), partial(widened_times, times=gating.exact))
    gate_weight, up_weight = (weights.stack([part.weight_rows]) for part in (gate, up))
    gate_bias, up_bias = (read_bias(weights, [part]) for part in (gate, up))
    return PackedGatedLinear(gate_weight, up_weight, gate_bias, up_bias, gating.on_the_way)


class RowLinear:
    def __init__(self, linear: Linear, group: Group) -> None:
        """`linear` takes this rank's slice of the inputs."""
        self._linear = linear
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        return self._group.sum(self.partial(x))

    def partial(self, x: Tensor) -> Tensor:
        """Return this rank's summand of the result, for callers that sum several linears in one all-reduce."""
        return self._linear(x)


def row_linear(weights: Weights, group: Group, name: str, shape: tuple[int, int], columns: range, *,
               bias: bool, turned: bool = False) -> RowLinear:
    """Return a row-parallel linear. Only rank 0 holds the bias, so that it is added once.

    `turned`: the file holds the weight transposed, [in, out].
    """
    added = weights.whole(f"{name}.bias", shape[:1]) if bias else None
    bias_here = added if group.rank == 0 else None
    wanted = Slice(f"{name}.weight", shape, range(shape[0]), columns)
    product: Linear | None = None if turned else tiled_linear(weights, [wanted], bias_here)
    if product is None:
        brief = packs(weights.dtype, weights.device)
        product = make_linear(weights.columns(wanted.name, shape, columns, brief=brief, turned=turned), bias_here)
    # An adapter's update is a sum over the inputs, too, so each rank adds its part before the all-reduce.
    return RowLinear(weights.sites.linear(product, [Portion(name, shape, range(shape[0]), columns)]), group)
