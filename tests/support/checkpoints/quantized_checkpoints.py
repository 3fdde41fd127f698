"""Quantized checkpoints in the tools' file formats, made with plain numpy and independent of our readers.

    quantized = write_quantized_checkpoint(folder, GptqTool(group_size=32), tmp_path)
    reference = write_quantized_checkpoint(folder, GptqTool(group_size=32), tmp_path, is_dequantized=True)

Both folders hold the same model: the second has the dequantized weights of the first.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

Array = NDArray[Any]
TensorsByName = dict[str, Array | torch.Tensor]


class QuantizationTool(Protocol):
    @property
    def config(self) -> dict[str, Any]:
        """Value of `quantization_config` that the tool writes."""

    def quantize_weight(self, name: str, weight: Array) -> tuple[TensorsByName, Array]:
        """Return the tensors that the tool writes for a weight, `[out, in]`, and the dequantized weight."""


def write_quantized_checkpoint(folder: Path, tool: QuantizationTool, target: Path, *, is_dequantized: bool = False,
                               quantizes_head: bool = False) -> Path:
    """Copy a model's folder with every linear quantized, the LM head only with `quantizes_head`; return the copy."""
    target_folder = target / hashlib.sha256(
        f"{folder} {tool} {is_dequantized} {quantizes_head}".encode()).hexdigest()[:12]
    if target_folder.exists():
        return target_folder
    shutil.copytree(folder, target_folder)
    tensors: TensorsByName = {}
    for name, tensor in load_file(target_folder / "model.safetensors").items():
        if not name.endswith("_proj.weight") and not (quantizes_head and name == "lm_head.weight"):
            tensors[name] = tensor
            continue
        packed, dequantized = tool.quantize_weight(name.removesuffix(".weight"), tensor.float().numpy())
        tensors |= {name: torch.from_numpy(dequantized)} if is_dequantized else packed
    save_file({name: tensor if isinstance(tensor, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(tensor))
               for name, tensor in tensors.items()}, target_folder / "model.safetensors")
    if not is_dequantized:
        config = json.loads((target_folder / "config.json").read_text())
        (target_folder / "config.json").write_text(json.dumps(config | {"quantization_config": tool.config}))
    return target_folder


# -- from weights to codes


def quantize_to_codes(weight: Array, group_indexes: Array, bits: int, *,
                      is_symmetric: bool) -> tuple[Array, Array, Array]:
    """Return unsigned codes `[out, in]`, and scales and zero points `[out, groups]`."""
    max_code, num_groups = 2**bits - 1, int(group_indexes.max()) + 1
    scales = np.empty((len(weight), num_groups), np.float16)
    zeros = np.full((len(weight), num_groups), 2**(bits - 1))
    for group in range(num_groups):
        group_weight = weight[:, group_indexes == group]
        low, high = np.minimum(group_weight.min(1), 0), np.maximum(group_weight.max(1), 0)
        if is_symmetric:
            scales[:, group] = np.maximum(np.maximum(-low, high), 1e-3) / (2**(bits - 1) - 1)
        else:
            scales[:, group] = np.maximum(high - low, 1e-3) / max_code
            zeros[:, group] = np.clip(np.round(-low / scales[:, group]), 1, max_code)
    codes = np.round(weight / scales[:, group_indexes].astype(np.float32)) + zeros[:, group_indexes]
    return np.clip(codes, 0, max_code).astype(np.int64), scales, zeros


def dequantize_codes(codes: Array, scales: Array, zeros: Array, group_indexes: Array) -> Array:
    exact = (codes - zeros[:, group_indexes]).astype(np.float32) * scales[:, group_indexes].astype(np.float32)
    return exact.astype(np.float32)


def pack_codes(codes: Array, bits: int) -> Array:
    """Pack codes along the last dimension into 32-bit words, the first code in the lowest bits."""
    per_word = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_word)))
    words = np.zeros((len(codes), padded.shape[1] // per_word), np.uint64)
    for index_in_word in range(per_word):
        words |= padded[:, index_in_word::per_word].astype(np.uint64) << np.uint64(bits * index_in_word)
    return words.astype(np.uint32).view(np.int32)


def make_group_indexes(num_inputs: int, group_size: int) -> Array:
    return np.arange(num_inputs) // (num_inputs if group_size == -1 else group_size)


# -- the tools


@dataclass(frozen=True)
class GptqTool:
    bits: int = 4
    group_size: int = 32
    desc_act: bool = False
    sym: bool = True
    checkpoint_format: str = "gptq"
    writes_group_indexes: bool = True  # whether g_idx is written

    @property
    def config(self) -> dict[str, Any]:
        return {"quant_method": "gptq", "bits": self.bits, "group_size": self.group_size, "desc_act": self.desc_act,
                "sym": self.sym, "checkpoint_format": self.checkpoint_format, "damp_percent": 0.1}

    def quantize_weight(self, name: str, weight: Array) -> tuple[TensorsByName, Array]:
        group_indexes = make_group_indexes(weight.shape[1], self.group_size)
        if self.desc_act:
            group_indexes = np.random.default_rng(1).permutation(group_indexes)
        codes, scales, zeros = quantize_to_codes(weight, group_indexes, self.bits, is_symmetric=self.sym)
        tensors: TensorsByName = {
            f"{name}.qweight": pack_codes_by_column(codes.T, self.bits),
            f"{name}.qzeros": pack_codes(zeros.T - (self.checkpoint_format == "gptq"), self.bits),
            f"{name}.scales": scales.T}
        if self.writes_group_indexes:
            tensors[f"{name}.g_idx"] = group_indexes.astype(np.int32)
        return tensors, dequantize_codes(codes, scales, zeros, group_indexes)


def pack_codes_by_column(codes: Array, bits: int) -> Array:
    return pack_codes(codes.T, bits).T


@dataclass(frozen=True)
class AwqTool:
    group_size: int = 32
    FIELD_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # index of the output in each 4-bit field of a word, lowest bits first

    @property
    def config(self) -> dict[str, Any]:
        return {"quant_method": "awq", "bits": 4, "group_size": self.group_size, "zero_point": True, "version": "gemm"}

    def quantize_weight(self, name: str, weight: Array) -> tuple[TensorsByName, Array]:
        group_indexes = make_group_indexes(weight.shape[1], self.group_size)
        codes, scales, zeros = quantize_to_codes(weight, group_indexes, 4, is_symmetric=False)
        return ({f"{name}.qweight": self._pack_reordered(codes.T), f"{name}.qzeros": self._pack_reordered(zeros.T),
                 f"{name}.scales": scales.T}, dequantize_codes(codes, scales, zeros, group_indexes))

    def _pack_reordered(self, codes: Array) -> Array:
        eights = codes.reshape(len(codes), -1, 8)[:, :, list(self.FIELD_ORDER)]
        return pack_codes(eights.reshape(len(codes), -1), 4)


def convert_to_float8(weight: Array, scales: Array) -> tuple[torch.Tensor, Array]:
    """Return float8 codes and the dequantized weight; `scales` has one scale per element."""
    codes = torch.from_numpy(weight / scales).to(torch.float8_e4m3fn)
    return codes, codes.float().numpy() * scales.astype(np.float32)


def compute_float8_scales(weight: Array, block_shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return one scale per block, and the scales expanded to the shape of the weight."""
    expanded_scales = np.empty(weight.shape, np.float32)
    height, width = block_shape
    scales = np.empty((-(-weight.shape[0] // height), -(-weight.shape[1] // width)), np.float32)
    for row, column in np.ndindex(scales.shape):
        block_slices = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        scales[row, column] = expanded_scales[block_slices] = np.abs(weight[block_slices]).max() / 448
    return scales, expanded_scales


@dataclass(frozen=True)
class Fp8Tool:
    kind: str = "tensor"  # or channel, or block
    has_static_activations: bool = False
    BLOCK_SHAPE = (32, 24)

    @property
    def config(self) -> dict[str, Any]:
        block = {"weight_block_size": list(self.BLOCK_SHAPE)} if self.kind == "block" else {}
        return {"quant_method": "fp8", "activation_scheme": "static" if self.has_static_activations else "dynamic",
                **block}

    def quantize_weight(self, name: str, weight: Array) -> tuple[TensorsByName, Array]:
        scales, expanded_scales = compute_float8_scales(weight, {
            "tensor": weight.shape, "channel": (1, weight.shape[1]), "block": self.BLOCK_SHAPE}[self.kind])
        codes, dequantized = convert_to_float8(weight, expanded_scales)
        suffix = "weight_scale_inv" if self.kind == "block" else "weight_scale"
        tensors: TensorsByName = {f"{name}.weight": codes,
                                  f"{name}.{suffix}": np.array(scales[0, 0]) if self.kind == "tensor" else scales}
        if self.has_static_activations:
            tensors[f"{name}.input_scale"] = np.array(0.5, np.float32)
        return tensors, dequantized


@dataclass(frozen=True)
class CompressedTensorsTool:
    format: str = "pack-quantized"
    bits: int = 4
    group_size: int | None = 32  # None: one scale per output
    symmetric: bool = True
    has_block_scales: bool = False
    has_permuted_groups: bool = False
    ignored_pattern: str = "re:.*down_proj"
    BLOCK_SHAPE = (32, 24)

    @property
    def config(self) -> dict[str, Any]:
        default_strategy = "tensor" if self.format == "float-quantized" else "group"
        strategy = "block" if self.has_block_scales else "channel" if self.group_size is None else default_strategy
        weights = {"num_bits": self.bits, "type": "float" if self.format == "float-quantized" else "int",
                   "symmetric": self.symmetric, "strategy": strategy, "group_size": self.group_size,
                   "block_structure": list(self.BLOCK_SHAPE) if self.has_block_scales else None, "dynamic": False}
        return {"quant_method": "compressed-tensors", "format": self.format,
                "ignore": ["lm_head", self.ignored_pattern],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
                "kv_cache_scheme": None, "quantization_status": "compressed"}

    def quantize_weight(self, name: str, weight: Array) -> tuple[TensorsByName, Array]:
        if name.endswith(self.ignored_pattern.removeprefix("re:.*")):
            return {f"{name}.weight": weight}, weight
        if self.format == "float-quantized":
            kind = "block" if self.has_block_scales else "tensor" if self.group_size else "channel"
            tensors, dequantized = replace(Fp8Tool(), kind=kind).quantize_weight(name, weight)
            return {key.removesuffix("_inv"): value for key, value in tensors.items()}, dequantized
        group_indexes = make_group_indexes(weight.shape[1], self.group_size or -1)
        if self.has_permuted_groups:
            group_indexes = np.random.default_rng(1).permutation(group_indexes)
        codes, scales, zeros = quantize_to_codes(weight, group_indexes, self.bits, is_symmetric=self.symmetric)
        return self._make_tensors(name, codes, scales, zeros,
                                  group_indexes), dequantize_codes(codes, scales, zeros, group_indexes)

    def _make_tensors(self, name: str, codes: Array, scales: Array, zeros: Array,
                      group_indexes: Array) -> TensorsByName:
        tensors: TensorsByName = {f"{name}.weight_scale": scales}
        zero_code = 2**(self.bits - 1)
        if self.has_permuted_groups:
            tensors[f"{name}.weight_g_idx"] = group_indexes.astype(np.int32)
        if self.format == "int-quantized":
            zero_points = {} if self.symmetric else {f"{name}.weight_zero_point": (zeros - zero_code).astype(np.int8)}
            return tensors | {f"{name}.weight": (codes - zero_code).astype(np.int8)} | zero_points
        if not self.symmetric:
            tensors[f"{name}.weight_zero_point"] = pack_codes_by_column(zeros, self.bits)
        return tensors | {f"{name}.weight_packed": pack_codes(codes, self.bits),
                          f"{name}.weight_shape": np.array(codes.shape)}
