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

from shard.attention import triton
from shard.lora import triton_lora_store
from shard.lora.routing import INTS_PER_ENTRY, ROWS_PER_ENTRY
from shard.ops import fused_ops, triton_support

COMPILE_PROGRAM = """
import sys, json
from importlib import import_module
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for module, name, signature, constants, options, capability in json.loads(sys.argv[1]):
    full_signature = signature | dict.fromkeys(constants, "constexpr")
    even = [i for i, (name_of, kind) in enumerate(signature.items()) if kind[0] == "*" or name_of.endswith("stride")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(getattr(import_module(module), name), full_signature, constants, attributes)
    assert compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"], name
"""
ATTENTION_MODULE, POINTWISE_MODULE = "shard.attention.triton_kernels", "shard.ops.fused_kernels"
ADAPTER_MODULE = "shard.lora.triton_lora_kernels"
PARTIALS = dict.fromkeys(("max_exponents", "weight_sums", "value_sums"), "*fp32")
CompileJob = tuple[str, str, dict[str, str], dict[str, Any], dict[str, int]]


class AttentionCase(NamedTuple):
    """Head layout of a model, and the parameters of its attention."""

    head_dim: int
    group_size: int
    dtype: torch.dtype
    window: int
    has_softcap: bool
    exact: bool = False


COMMON_ATTENTION_CASES = [AttentionCase(128, 4, torch.bfloat16, 0, has_softcap=False),
                          AttentionCase(128, 4, torch.bfloat16, 1000, has_softcap=True)]
ALL_ATTENTION_CASES = [*COMMON_ATTENTION_CASES, AttentionCase(64, 7, torch.bfloat16, 0, has_softcap=False),
                       AttentionCase(64, 1, torch.float16, 300, has_softcap=False),
                       AttentionCase(64, 4, torch.bfloat16, 300, has_softcap=True, exact=True),
                       AttentionCase(128, 4, torch.bfloat16, 0, has_softcap=False, exact=True),
                       AttentionCase(80, 1, torch.float16, 0, has_softcap=False),
                       AttentionCase(256, 2, torch.bfloat16, 4096, has_softcap=True),
                       AttentionCase(256, 4, torch.float32, 0, has_softcap=True),
                       AttentionCase(128, 8, torch.float32, 0, has_softcap=False)]
POINTER_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


def make_pointer_signature(*names: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, str]:
    return dict.fromkeys(names, POINTER_TYPES[dtype])


def make_attention_jobs(case: AttentionCase) -> list[CompileJob]:
    pointer_signature, scalar_signature = make_pointer_signature("queries", "keys", "values", dtype=case.dtype) | {
        "block_tables": "*i32"}, {"token_stride": "i32", "slot_stride": "i32", "scale": "fp32", "softcap": "fp32"}
    head_dim_constants = {"HEAD_DIM": case.head_dim, "HEAD_PAD": triton.pad_head_dim(case.head_dim)}
    layer_constants = {"CAPPED": case.has_softcap, "WINDOW": case.window, "GROUP": case.group_size,
                       **head_dim_constants, "BLOCK_SIZE": 16, "SPLIT": triton.SPLIT_POSITIONS}
    decode_constants, chunk_constants = (
        layer_constants | {"TILE": sizes.tile_positions, "ROWS": sizes.query_rows}
        for sizes in triton.AttentionTileSizes.from_heads(case.group_size, case.head_dim, case.dtype, exact=case.exact))
    options = {"num_warps": triton.NUM_WARPS, "num_stages": triton.NUM_STAGES}
    output = make_pointer_signature("output", dtype=case.dtype)
    return [(ATTENTION_MODULE, "attend_decode_splits",
             {**pointer_signature, "split_entries": "*i32", "split_offsets": "*i32", **PARTIALS, "num_decodes": "i32",
              **scalar_signature}, decode_constants, options),
            (ATTENTION_MODULE, "attend_chunk_tiles", {**pointer_signature, "chunk_tile_entries": "*i32", **output,
                                                      **scalar_signature}, chunk_constants, options),
            (ATTENTION_MODULE, "merge_decode_splits", {**PARTIALS, **output, "split_offsets": "*i32"},
             head_dim_constants, {"num_warps": 1})]


POINTWISE_JOBS = [
    (POINTWISE_MODULE, "rms_norm_rows", make_pointer_signature("x", "delta", "weight", "output") | {"epsilon": "fp32"},
     {"ADD_DELTA": True, "ROUND_AFTER_WEIGHT": False, "WIDTH": 4096, "BLOCK": 4096}, {"num_warps": 8}),
    (POINTWISE_MODULE, "gated_activation_rows", make_pointer_signature("gate", "up", "output") | {"row_stride": "i32"},
     {"GELU_TANH": True, "WIDTH": 14336, "BLOCK": 1024}, {"num_warps": 4}),
    (POINTWISE_MODULE, "rotate_and_cache_heads",
     make_pointer_signature("qkv", "weight") | {"cos_sin_table": "*fp32", "positions": "*i64", "slots": "*i64"}
     | make_pointer_signature("queries", "keys", "values") | {"epsilon": "fp32", "slot_stride": "i32"},
     {"HAS_NORM": True, "ROUND_AFTER_WEIGHT": False, "INTERLEAVED": False, "ROTATED_DIM": 128, "NUM_HEADS": 32,
      "NUM_KV_HEADS": 8, "HEAD_DIM": 128, "HEADS_PER_PROGRAM": fused_ops.HEADS_PER_PROGRAM, "BLOCK": 128},
     {"num_warps": fused_ops.WARPS_FOR_HEADS})]


LORA_WORK_SIGNATURE = {**make_pointer_signature("dtype_example"), "address_tables": "*i64", "entries": "*i32",
                       "num_entries": "*i32", "row_indices": "*i32"}
LORA_CONSTANTS = {"NUM_PARTS": 3, "ROWS": ROWS_PER_ENTRY, "RANKS": triton_lora_store.RANKS_PER_DOT,
                  "INTS_PER_ENTRY": INTS_PER_ENTRY}
ADAPTER_JOBS = [
    (ADAPTER_MODULE, "lora_shrink",
     {**make_pointer_signature("x"), **LORA_WORK_SIGNATURE, "shrunk": "*fp32", "x_stride": "i32", "num_inputs": "i32",
      "shrunk_size": "i32"},
     {**LORA_CONSTANTS, "SPLIT": triton_lora_store.INPUTS_PER_PROGRAM, "PIECE": triton_lora_store.INPUTS_PER_DOT}, {}),
    *((ADAPTER_MODULE, "lora_expand",
       {"shrunk": "*fp32", **LORA_WORK_SIGNATURE, "output_blocks": "*i32", "y": kind, "y_stride": "i32",
        "shrunk_size": "i32", "num_splits": "i32"},
       {**LORA_CONSTANTS, "BLOCK": triton_lora_store.OUTPUTS_PER_PROGRAM,
        "ALIGNMENT": triton_lora_store.COLUMN_ALIGNMENT}, {})
      for kind in ("*bf16", "*fp32"))]


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "cases"), [(90, COMMON_ATTENTION_CASES), *(
    pytest.param(capability, ALL_ATTENTION_CASES, marks=pytest.mark.long) for capability in (80, 90))])
def test_kernels_compile_for_gpus(capability: int, cases: list[AttentionCase], tmp_path: Path) -> None:
    attention_jobs = [job for case in cases for job in make_attention_jobs(case)]
    jobs = [(*job, capability) for job in [*attention_jobs, *POINTWISE_JOBS, *ADAPTER_JOBS]]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-P", "-c", COMPILE_PROGRAM, json.dumps(jobs)], check=True, env=environment)


def test_kernels_are_used_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "import_module", str)
    monkeypatch.setattr(triton_support, "has_triton", lambda: True)
    assert triton_support.import_kernels(torch.device("cpu")) is None
    assert triton_support.import_kernels(torch.device("cuda", 1)) == "shard.ops.fused_ops"
    assert triton_support.import_kernels(torch.device("cuda"),
                                         "shard.lora.triton_lora_store") == "shard.lora.triton_lora_store"
    monkeypatch.setattr(triton_support, "has_triton", lambda: False)
    assert triton_support.import_kernels(torch.device("cuda")) is None
