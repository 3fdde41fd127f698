"""Survey of this machine and of a model's needs, as JSON on stdout: `python -P -m shard.workers.doctor_survey JSON`. It
leaves the diagnosis to `weft doctor`, and loads no weights."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from shard.attention.kv_cache import NUM_RESERVED_BLOCKS, KVCache
from shard.checkpoint.reader import CheckpointReader
from shard.hardware.cache_budget import (
    AvailableMemory,
    CacheBudget,
    compute_gpu_cache_budget,
    compute_host_cache_budget,
    count_fitting_blocks,
    read_gpu_memory,
    read_host_memory,
)
from shard.hardware.cgroups import count_usable_cores
from shard.hardware.device_setup import choose_device
from shard.hardware.dtype import choose_dtype, dtype_name
from shard.models.registry import load_model_config
from shard.native.library import load_library_or_reason
from shard.ops.unquantized_linear import can_pack
from shard.workers.model_loading import check_quantization_on_load
from shard.workers.weight_size import estimate_weight_bytes

CPUINFO_PATH = Path("/proc/cpuinfo")
# used by products if available
CPU_FEATURES = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def survey_machine() -> dict[str, Any]:
    memory = read_host_memory()
    gpus = [(torch.cuda.get_device_name(index), *read_gpu_memory(index)) for index in range(torch.cuda.device_count())]
    return {
        "torch": torch.__version__, "cuda": torch.version.cuda or "", "instructions": read_cpu_features(CPUINFO_PATH),
        "packs_bfloat16": can_pack(torch.bfloat16), "missing_kernels": "" if gpus else explain_missing_kernels(),
        "gpus": [{"name": name, "free": free, "total": total} for name, free, total in gpus],
        "cores": count_usable_cores(), "processors": os.cpu_count(), "memory": memory.bytes,
        "memory_source": memory.source}


def explain_missing_kernels() -> str:
    """Return why there are no compiled kernels, or an empty string."""
    library = load_library_or_reason()
    return library if isinstance(library, str) else ""


def read_cpu_features(path: Path) -> list[str]:
    lines = (line for line in path.read_text().splitlines() if line.startswith(("flags", "Features")))
    flags = {flag for line in lines for flag in line.split()}
    return [flag for flag in CPU_FEATURES if flag in flags]


def estimate_model_needs(folder: Path, requested_dtype: str, device: str, num_shards: int, block_size: int, *,
                         quantize: str = "", max_cache_tokens: int | None = None) -> dict[str, Any]:
    """Return a model's needs; raises ValueError or OSError if it cannot be served. `max_cache_tokens` is the limit that
    the user sets (--max-batch-total-tokens)."""
    model_config = load_model_config(folder)
    # the faster number type by the processor's features; a shard measures it
    dtype = choose_dtype(requested_dtype, model_config.dtype, device,
                         lambda: torch.bfloat16 if can_pack(torch.bfloat16) else torch.float32).dtype
    with CheckpointReader(folder, dtype, torch.device("cpu"), getattr(model_config, "quantization", None), quantize):
        check_quantization_on_load(quantize, device)
    needed_bytes = estimate_weight_bytes(folder, model_config, dtype, torch.device(device), quantize)
    block_bytes = KVCache.bytes_per_block(model_config.num_layers, model_config.num_kv_heads, model_config.head_dim,
                                          block_size, dtype)  # of all shards together
    free, total = read_device_memory(device, num_shards)
    num_blocks = count_fitting_blocks(compute_cache_budget(needed_bytes, free, total, device), block_bytes,
                                      NUM_RESERVED_BLOCKS)
    if max_cache_tokens is not None:
        num_blocks = min(num_blocks, max_cache_tokens // block_size)
    return {"architecture": model_config.architecture, "dtype": dtype_name(dtype), "device": device,
            "weights": needed_bytes, "max_positions": model_config.max_positions, "block": block_bytes, "free": free,
            "quantize": quantize, "tokens": num_blocks * block_size}


def read_device_memory(device: str, num_shards: int) -> tuple[int, int]:
    """Return free and total bytes of the devices that `num_shards` shards use."""
    if device == "cpu":
        return (read_host_memory().bytes,) * 2
    figures = [read_gpu_memory(number) for number in range(min(num_shards, torch.cuda.device_count()))]
    free, total = (sum(column) for column in zip(*figures, strict=True))
    return free, total


def compute_cache_budget(needed_bytes: int, free: int, total: int, device: str) -> CacheBudget:
    """Return the room for the cache of all shards, beside weights of `needed_bytes` bytes."""
    left = max(0, free - needed_bytes)
    return (compute_host_cache_budget(AvailableMemory(left, ""), None, 1) if device == "cpu"
            else compute_gpu_cache_budget(left, total, None, 1))


def main() -> None:
    request = json.loads(sys.argv[1])
    survey: dict[str, Any] = {"machine": survey_machine()}
    if request["model"]:
        try:
            device = choose_device(request["device"], 0, len(survey["machine"]["gpus"])).type
            survey["model"] = estimate_model_needs(
                Path(request["model"]), request["dtype"], device, request["num_shards"], request["block_size"],
                quantize=request["quantize"], max_cache_tokens=request["max_cache_tokens"])
        except (ValueError, OSError) as error:
            survey["problem"] = str(error)
    json.dump(survey, sys.stdout)


if __name__ == "__main__":
    main()
