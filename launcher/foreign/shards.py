"""How many shards there are where `--sharded` and `--num-shard` may both be given, or neither.

Knows of GPUs only how many there are.
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping

HIDDEN = {"-1", "none", "nodevfiles"}  # after these nothing is visible
ALL = {"all", "void"}  # the driver knows how many


def num_shards(sharded: str, num_shard: str, devices: Callable[[], int]) -> int:
    """What was given, empty if nothing; raises ValueError where it makes no sense."""
    if num_shard and not num_shard.isdecimal():
        raise ValueError(f"--num-shard must be a whole number, got {num_shard}")
    wanted = int(num_shard) if num_shard else 1 if sharded == "false" else max(devices(), 1)
    if sharded == "true" and wanted <= 1:
        raise ValueError(f"--sharded true needs at least 2 shards, got {wanted}" + (
            " (--num-shard)" if num_shard else ": there are no more GPUs to be seen; say how many with --num-shard"))
    return wanted


def visible_devices(environment: Mapping[str, str], count: Callable[[], int]) -> int:
    """As the variables tell that the driver follows; 0 where none of them is set."""
    listed = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("NVIDIA_VISIBLE_DEVICES") or ""
    if listed.lower() in ALL:
        return count()
    names = [name.strip().lower() for name in listed.split(",") if name.strip()]
    return next((place for place, name in enumerate(names) if name in HIDDEN), len(names))


def count_gpus() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        told = subprocess.run([program, "--list-gpus"], capture_output=True, text=True, check=False, timeout=10)
    except subprocess.TimeoutExpired:
        return 0
    return sum(line.startswith("GPU ") for line in told.stdout.splitlines())
