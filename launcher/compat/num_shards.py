"""Number of shards, from the optional flags `--sharded` and `--num-shard` and the number of visible GPUs."""

import shutil
import subprocess
from collections.abc import Callable, Mapping

DEVICE_LIST_ENDS = {"-1", "none", "nodevfiles"}  # this entry ends the list of visible devices
ALL_DEVICES_VALUES = {"all", "void"}  # the driver reports the number


def choose_num_shards(sharded: str, num_shard: str, count_devices: Callable[[], int]) -> int:
    """Return the number of shards. Flags that are not given are empty. Raises ValueError for invalid combinations."""
    if num_shard and not num_shard.isdecimal():
        raise ValueError(f"--num-shard must be a whole number, got {num_shard}")
    count = int(num_shard) if num_shard else 1 if sharded == "false" else max(count_devices(), 1)
    if sharded == "true" and count <= 1:
        raise ValueError(f"--sharded true needs at least 2 shards, got {count}" + (
            " (--num-shard)" if num_shard else ": there are no more GPUs to be seen; say how many with --num-shard"))
    return count


def count_visible_devices(environment: Mapping[str, str], count_all_devices: Callable[[], int]) -> int:
    """Return the number of devices in the variables that the driver reads, or 0 if none of them is set."""
    listed = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("NVIDIA_VISIBLE_DEVICES") or ""
    if listed.lower() in ALL_DEVICES_VALUES:
        return count_all_devices()
    names = [name.strip().lower() for name in listed.split(",") if name.strip()]
    return next((index for index, name in enumerate(names) if name in DEVICE_LIST_ENDS), len(names))


def count_gpus() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        result = subprocess.run([program, "--list-gpus"], capture_output=True, text=True, check=False, timeout=10)
    except subprocess.TimeoutExpired:
        return 0
    return sum(line.startswith("GPU ") for line in result.stdout.splitlines())
