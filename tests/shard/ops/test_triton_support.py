"""Every kernel compiles for GPUs; compiling needs no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")  # published for Linux only

from shard.adapters import lora_triton
from shard.adapters.lora_work import ENTRY, ROWS
from shard.attention import triton
from shard.ops import triton_support

COMPILING = """
import sys, json
from importlib import import_module
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for module, name, signature, constants, options, capability in json.loads(sys.argv[1]):
    told = signature | dict.fromkeys(constants, "constexpr")
    even = [i for i, (name_of, kind) in enumerate(signature.items()) if kind[0] == "*" or name_of.endswith("stride")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(getattr(import_module(module), name), told, constants, attributes)
    assert compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"], name
"""
ATTENTION, POINTWISE = "shard.attention.triton_kernels", "shard.ops.fused_kernels"
ADAPTERS = "shard.adapters.lora_kernels"
FOUND = dict.fromkeys(("best", "total", "mixed"), "*fp32")
Job = tuple[str, str, dict[str, str], dict[str, Any], dict[str, int]]


class Heads(NamedTuple):
    """Head layout of a model, and the parameters of its attention."""

    head_dim: int
    group: int
    dtype: torch.dtype
    window: int
    capped: bool


COMMON = [Heads(128, 4, torch.bfloat16, 0, capped=False), Heads(128, 4, torch.bfloat16, 1000, capped=True)]
ALL = [*COMMON, Heads(64, 7, torch.bfloat16, 0, capped=False), Heads(64, 1, torch.float16, 300, capped=False),
       Heads(80, 1, torch.float16, 0, capped=False), Heads(256, 2, torch.bfloat16, 4096, capped=True),
       Heads(256, 4, torch.float32, 0, capped=True), Heads(128, 8, torch.float32, 0, capped=False)]
SHORT = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


def addresses(*names: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, str]:
    return dict.fromkeys(names, SHORT[dtype])


def attention_jobs(heads: Heads) -> list[Job]:
    sizes = triton.Sizes.of(heads.group, heads.head_dim, heads.dtype)
    read, reading = addresses("queries", "keys", "values", dtype=heads.dtype) | {"table": "*i32"}, {
        "token_stride": "i32", "slot_stride": "i32", "scale": "fp32", "softcap": "fp32"}
    wide = {"HEAD_DIM": heads.head_dim, "HEAD_PAD": triton.padded(heads.head_dim)}
    layer = {"CAPPED": heads.capped, "WINDOW": heads.window, "GROUP": heads.group, **wide, "BLOCK_SIZE": 16,
             "SPLIT": triton.SPLIT, "TILE": sizes.tile, "ROWS": sizes.rows}
    options, output = {"num_warps": triton.WARPS, "num_stages": triton.STAGES}, addresses(
        "output", dtype=heads.dtype)
    return [(ATTENTION, "decode_splits", {**read, "work": "*i32", "entries": "*i32", **FOUND, "num_decodes": "i32",
                                          **reading}, layer, options),
            (ATTENTION, "chunk_tiles", {**read, "tiles": "*i32", **output, **reading}, layer, options),
            (ATTENTION, "decode_merge", {**FOUND, **output, "entries": "*i32"}, wide, {"num_warps": 1})]


POINTWISE_JOBS = [
    (POINTWISE, "norm_rows", addresses("x", "delta", "weight", "output") | {"epsilon": "fp32"},
     {"ADDS": True, "WIDE": False, "WIDTH": 4096, "BLOCK": 4096}, {"num_warps": 8}),
    (POINTWISE, "gate_rows", addresses("gate", "up", "output") | {"row_stride": "i32"},
     {"TANH": True, "WIDTH": 14336, "BLOCK": 1024}, {"num_warps": 4}),
    (POINTWISE, "enter_heads", addresses("qkv", "weight") | {"table": "*fp32", "positions": "*i64", "slots": "*i64"}
     | addresses("queries", "keys", "values") | {"epsilon": "fp32", "slot_stride": "i32"},
     {"NORMS": True, "WIDE": False, "NEIGHBOURS": False, "TURNED": 128, "HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128,
      "BLOCK": 128}, {"num_warps": 1})]


LISTED = {**addresses("like"), "tables": "*i64", "work": "*i32", "number": "*i32", "rows": "*i32"}
ADAPTING = {"PARTS": 3, "ROWS": ROWS, "RANKS": lora_triton.RANKS, "ENTRY": ENTRY}
ADAPTER_JOBS = [
    (ADAPTERS, "shrink", {**addresses("x"), **LISTED, "narrow": "*fp32", "x_stride": "i32", "num_inputs": "i32",
                          "room": "i32"},
     {**ADAPTING, "SPLIT": lora_triton.SPLIT, "PIECE": lora_triton.PIECE}, {}),
    *((ADAPTERS, "expand", {"narrow": "*fp32", **LISTED, "blocks": "*i32", "y": kind, "y_stride": "i32",
                            "room": "i32", "num_splits": "i32"},
       {**ADAPTING, "BLOCK": lora_triton.BLOCK, "EVEN": lora_triton.EVEN}, {}) for kind in ("*bf16", "*fp32"))]


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "heads"), [
    (90, COMMON), *(pytest.param(capability, ALL, marks=pytest.mark.long) for capability in (80, 90))])
def test_kernels_compile_for_gpus(capability: int, heads: list[Heads], tmp_path: Path) -> None:
    attention = [job for one in heads for job in attention_jobs(one)]
    jobs = [(*job, capability) for job in [*attention, *POINTWISE_JOBS, *ADAPTER_JOBS]]
    surroundings = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-P", "-c", COMPILING, json.dumps(jobs)], check=True, env=surroundings)


def test_layers_compute_by_kernels_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "import_module", str)
    monkeypatch.setattr(triton_support, "has_triton", lambda: True)
    assert triton_support.kernels(torch.device("cpu")) is None
    assert triton_support.kernels(torch.device("cuda", 1)) == "shard.ops.fused"
    assert triton_support.kernels(torch.device("cuda"), "shard.adapters.lora_triton") == "shard.adapters.lora_triton"
    monkeypatch.setattr(triton_support, "has_triton", lambda: False)
    assert triton_support.kernels(torch.device("cuda")) is None
