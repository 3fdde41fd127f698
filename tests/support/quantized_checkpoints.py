"""Quantized checkpoints in the tools' file formats, made with plain numpy and independent of our readers.

    quantised = written(folder, Gptq(group_size=32), tmp_path)
    reference = written(folder, Gptq(group_size=32), tmp_path, dequantised=True)

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

Numbers = NDArray[Any]
Written = dict[str, Numbers | torch.Tensor]


class Tool(Protocol):
    @property
    def config(self) -> dict[str, Any]:
        """Value of `quantization_config` that the tool writes."""

    def quantise(self, name: str, weight: Numbers) -> tuple[Written, Numbers]:
        """Return the tensors that the tool writes for a weight, `[out, in]`, and the dequantized weight."""


def written(folder: Path, tool: Tool, target: Path, *, dequantised: bool = False, head: bool = False) -> Path:
    """Copy a model's folder with every linear quantized, the LM head only with `head`; return the copy."""
    made = target / hashlib.sha256(f"{folder} {tool} {dequantised} {head}".encode()).hexdigest()[:12]
    if made.exists():
        return made
    shutil.copytree(folder, made)
    tensors: Written = {}
    for name, tensor in load_file(made / "model.safetensors").items():
        if not name.endswith("_proj.weight") and not (head and name == "lm_head.weight"):
            tensors[name] = tensor
            continue
        packed, numbers = tool.quantise(name.removesuffix(".weight"), tensor.float().numpy())
        tensors |= {name: torch.from_numpy(numbers)} if dequantised else packed
    save_file({name: tensor if isinstance(tensor, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(tensor))
               for name, tensor in tensors.items()}, made / "model.safetensors")
    if not dequantised:
        config = json.loads((made / "config.json").read_text())
        (made / "config.json").write_text(json.dumps(config | {"quantization_config": tool.config}))
    return made


# -- from weights to codes


def find_codes(weight: Numbers, groups: Numbers, bits: int, *, symmetric: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Return unsigned codes `[out, in]`, and scales and zero points `[out, groups]`."""
    most, num_groups = 2**bits - 1, int(groups.max()) + 1
    scales = np.empty((len(weight), num_groups), np.float16)
    zeros = np.full((len(weight), num_groups), 2**(bits - 1))
    for group in range(num_groups):
        part = weight[:, groups == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, group] = np.maximum(np.maximum(-low, high), 1e-3) / (2**(bits - 1) - 1)
        else:
            scales[:, group] = np.maximum(high - low, 1e-3) / most
            zeros[:, group] = np.clip(np.round(-low / scales[:, group]), 1, most)
    codes = np.round(weight / scales[:, groups].astype(np.float32)) + zeros[:, groups]
    return np.clip(codes, 0, most).astype(np.int64), scales, zeros


def numbers(codes: Numbers, scales: Numbers, zeros: Numbers, groups: Numbers) -> Numbers:
    exact = (codes - zeros[:, groups]).astype(np.float32) * scales[:, groups].astype(np.float32)
    return exact.astype(np.float32)


def pack(codes: Numbers, bits: int) -> Numbers:
    """Pack codes along the last dimension into 32-bit words, the first code in the lowest bits."""
    per_word = 32 // bits
    filled = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_word)))
    words = np.zeros((len(codes), filled.shape[1] // per_word), np.uint64)
    for place in range(per_word):
        words |= filled[:, place::per_word].astype(np.uint64) << np.uint64(bits * place)
    return words.astype(np.uint32).view(np.int32)


def side_by_side(inputs: int, group_size: int) -> Numbers:
    return np.arange(inputs) // (inputs if group_size == -1 else group_size)


# -- the tools


@dataclass(frozen=True)
class Gptq:
    bits: int = 4
    group_size: int = 32
    desc_act: bool = False
    sym: bool = True
    checkpoint_format: str = "gptq"
    ordered: bool = True  # whether g_idx is written

    @property
    def config(self) -> dict[str, Any]:
        return {"quant_method": "gptq", "bits": self.bits, "group_size": self.group_size, "desc_act": self.desc_act,
                "sym": self.sym, "checkpoint_format": self.checkpoint_format, "damp_percent": 0.1}

    def quantise(self, name: str, weight: Numbers) -> tuple[Written, Numbers]:
        groups = side_by_side(weight.shape[1], self.group_size)
        if self.desc_act:
            groups = np.random.default_rng(1).permutation(groups)
        codes, scales, zeros = find_codes(weight, groups, self.bits, symmetric=self.sym)
        tensors: Written = {
            f"{name}.qweight": pack_rows(codes.T, self.bits),
            f"{name}.qzeros": pack(zeros.T - (self.checkpoint_format == "gptq"), self.bits),
            f"{name}.scales": scales.T}
        if self.ordered:
            tensors[f"{name}.g_idx"] = groups.astype(np.int32)
        return tensors, numbers(codes, scales, zeros, groups)


def pack_rows(codes: Numbers, bits: int) -> Numbers:
    return pack(codes.T, bits).T


@dataclass(frozen=True)
class Awq:
    group_size: int = 32
    ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # index of the output in each 4-bit field of a word, lowest bits first

    @property
    def config(self) -> dict[str, Any]:
        return {"quant_method": "awq", "bits": 4, "group_size": self.group_size, "zero_point": True, "version": "gemm"}

    def quantise(self, name: str, weight: Numbers) -> tuple[Written, Numbers]:
        groups = side_by_side(weight.shape[1], self.group_size)
        codes, scales, zeros = find_codes(weight, groups, 4, symmetric=False)
        return ({f"{name}.qweight": self._pack(codes.T), f"{name}.qzeros": self._pack(zeros.T),
                 f"{name}.scales": scales.T}, numbers(codes, scales, zeros, groups))

    def _pack(self, codes: Numbers) -> Numbers:
        eights = codes.reshape(len(codes), -1, 8)[:, :, list(self.ORDER)]
        return pack(eights.reshape(len(codes), -1), 4)


def to_float8(weight: Numbers, scales: Numbers) -> tuple[torch.Tensor, Numbers]:
    """Return float8 codes and the dequantized weight; `scales` has one scale per element."""
    codes = torch.from_numpy(weight / scales).to(torch.float8_e4m3fn)
    return codes, codes.float().numpy() * scales.astype(np.float32)


def float8_scales(weight: Numbers, blocks: tuple[int, int]) -> tuple[Numbers, Numbers]:
    """Return one scale per block, and the scales expanded to the shape of the weight."""
    spread = np.empty(weight.shape, np.float32)
    height, width = blocks
    scales = np.empty((-(-weight.shape[0] // height), -(-weight.shape[1] // width)), np.float32)
    for row, column in np.ndindex(scales.shape):
        place = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        scales[row, column] = spread[place] = np.abs(weight[place]).max() / 448
    return scales, spread


@dataclass(frozen=True)
class Fp8:
    kind: str = "tensor"  # or channel, or block
    static: bool = False
    BLOCK = (32, 24)

    @property
    def config(self) -> dict[str, Any]:
        block = {"weight_block_size": list(self.BLOCK)} if self.kind == "block" else {}
        return {"quant_method": "fp8", "activation_scheme": "static" if self.static else "dynamic", **block}

    def quantise(self, name: str, weight: Numbers) -> tuple[Written, Numbers]:
        scales, spread = float8_scales(weight, {
            "tensor": weight.shape, "channel": (1, weight.shape[1]), "block": self.BLOCK}[self.kind])
        codes, numbers = to_float8(weight, spread)
        suffix = "weight_scale_inv" if self.kind == "block" else "weight_scale"
        tensors: Written = {f"{name}.weight": codes,
                            f"{name}.{suffix}": np.array(scales[0, 0]) if self.kind == "tensor" else scales}
        if self.static:
            tensors[f"{name}.input_scale"] = np.array(0.5, np.float32)
        return tensors, numbers


@dataclass(frozen=True)
class Compressed:
    format: str = "pack-quantized"
    bits: int = 4
    group_size: int | None = 32  # None: one scale per output
    symmetric: bool = True
    block: bool = False
    ordered: bool = False
    ignored: str = "re:.*down_proj"
    BLOCK = (32, 24)

    @property
    def config(self) -> dict[str, Any]:
        together = "tensor" if self.format == "float-quantized" else "group"
        strategy = "block" if self.block else "channel" if self.group_size is None else together
        weights = {"num_bits": self.bits, "type": "float" if self.format == "float-quantized" else "int",
                   "symmetric": self.symmetric, "strategy": strategy, "group_size": self.group_size,
                   "block_structure": list(self.BLOCK) if self.block else None, "dynamic": False}
        return {"quant_method": "compressed-tensors", "format": self.format, "ignore": ["lm_head", self.ignored],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
                "kv_cache_scheme": None, "quantization_status": "compressed"}

    def quantise(self, name: str, weight: Numbers) -> tuple[Written, Numbers]:
        if name.endswith(self.ignored.removeprefix("re:.*")):
            return {f"{name}.weight": weight}, weight
        if self.format == "float-quantized":
            kind = "block" if self.block else "tensor" if self.group_size else "channel"
            tensors, numbers_ = replace(Fp8(), kind=kind).quantise(name, weight)
            return {key.removesuffix("_inv"): value for key, value in tensors.items()}, numbers_
        groups = side_by_side(weight.shape[1], self.group_size or -1)
        if self.ordered:
            groups = np.random.default_rng(1).permutation(groups)
        codes, scales, zeros = find_codes(weight, groups, self.bits, symmetric=self.symmetric)
        return self._tensors(name, codes, scales, zeros, groups), numbers(codes, scales, zeros, groups)

    def _tensors(self, name: str, codes: Numbers, scales: Numbers, zeros: Numbers, groups: Numbers) -> Written:
        tensors: Written = {f"{name}.weight_scale": scales}
        half = 2**(self.bits - 1)
        if self.ordered:
            tensors[f"{name}.weight_g_idx"] = groups.astype(np.int32)
        if self.format == "int-quantized":
            zero_points = {} if self.symmetric else {f"{name}.weight_zero_point": (zeros - half).astype(np.int8)}
            return tensors | {f"{name}.weight": (codes - half).astype(np.int8)} | zero_points
        if not self.symmetric:
            tensors[f"{name}.weight_zero_point"] = pack_rows(zeros, self.bits)
        return tensors | {f"{name}.weight_packed": pack(codes, self.bits),
                          f"{name}.weight_shape": np.array(codes.shape)}
