"""Survey of this machine and of a model's needs, for `weft doctor`: `python -P -m shard.workers.survey JSON`.

Writes JSON to stdout. It reads and estimates, and leaves the diagnosis to `weft doctor`; it loads no weights.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from shard.attention.kv_cache import NUM_SPARE, Cache
from shard.checkpoint.reader import Weights, weight_bytes
from shard.host.cgroups import count_cores
from shard.host.dtype import choose_dtype, name
from shard.host.memory import Available, Room, gpu_room, host_room, num_fitting, read_gpu, read_host
from shard.models.config import ModelConfig
from shard.models.read_config import read_config
from shard.ops.linear import can_pack

CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # used by products if available


def machine() -> dict[str, Any]:
    memory = read_host()
    return {
        "torch": torch.__version__, "cuda": torch.version.cuda or "", "instructions": instructions(CPUINFO),
        "packs_bfloat16": can_pack(torch.bfloat16),
        "gpus": [gpu(number) for number in range(torch.cuda.device_count())],
        "cores": count_cores(), "processors": os.cpu_count(), "memory": memory.bytes, "memory_source": memory.source}


def instructions(path: Path) -> list[str]:
    lines = (line for line in path.read_text().splitlines() if line.startswith(("flags", "Features")))
    flags = {flag for line in lines for flag in line.split()}
    return [flag for flag in INSTRUCTIONS if flag in flags]


def gpu(number: int) -> dict[str, Any]:
    free, total = read_gpu(number)
    return {"name": torch.cuda.get_device_name(number), "free": free, "total": total}


def model(folder: Path, asked_dtype: str, device: str, num_shards: int, block_size: int) -> dict[str, Any]:
    """Return a model's needs; raises ValueError or OSError if it cannot be served."""
    described = read_config(folder)
    dtype = choose_dtype(asked_dtype, described.dtype, device, quickest).dtype
    with Weights(folder, dtype, torch.device("cpu")):
        needed = weight_bytes(folder) * dtype.itemsize // described.dtype.itemsize
    block_bytes = bytes_per_block(described, block_size, dtype)
    free, total = memory_of(device, num_shards)
    room = room_beside(needed, free, total, device)
    return {"architecture": described.architecture, "dtype": name(dtype), "device": device, "weights": needed,
            "max_positions": described.max_positions, "block": block_bytes, "free": free,
            "tokens": num_fitting(room, block_bytes, NUM_SPARE) * block_size}


def quickest() -> torch.dtype:
    """Guess the faster number type by the processor's features; a shard measures it."""
    return torch.bfloat16 if can_pack(torch.bfloat16) else torch.float32


def bytes_per_block(described: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of a cache block of all shards together."""
    return Cache.bytes_per_block(described.num_layers, described.num_kv_heads, described.head_dim, block_size, dtype)


def memory_of(device: str, num_shards: int) -> tuple[int, int]:
    """Return free and total bytes of the devices that `num_shards` shards use."""
    if device == "cpu":
        return (read_host().bytes,) * 2
    figures = [read_gpu(number) for number in range(min(num_shards, torch.cuda.device_count()))]
    free, total = (sum(column) for column in zip(*figures, strict=True))
    return free, total


def room_beside(needed: int, free: int, total: int, device: str) -> Room:
    """Return the room for the cache of all shards, beside weights of `needed` bytes."""
    left = max(0, free - needed)
    return host_room(Available(left, ""), None, 1) if device == "cpu" else gpu_room(left, total, None, 1)


def main() -> None:
    order = json.loads(sys.argv[1])
    found: dict[str, Any] = {"machine": machine()}
    if order["model"]:
        device = order["device"] if order["device"] != "auto" else "cuda" if found["machine"]["gpus"] else "cpu"
        try:
            found["model"] = model(
                Path(order["model"]), order["dtype"], device, order["num_shards"], order["block_size"])
        except (ValueError, OSError) as error:
            found["problem"] = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
