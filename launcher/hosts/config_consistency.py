"""Comparison of what must be the same on all hosts of a model: version of weft, the model's files, and the settings
that change what a step does."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.hosts.group_plan import GroupPlan

COMMON_SETTINGS = ("dtype", "quantize", "adaptable", "embedding_dim", "device", "speculate", "attention", "exact",
                   "dist_backend", "simulated")
FLAG_NAMES = {"adaptable": "--adapters", "simulated": "settings of weft/simulated"}  # of settings with other names
CONFIG_FILE, WEIGHT_FILES = "config.json", "*.safetensors"


def collect_host_facts(shard_settings: Mapping[str, Any], group: GroupPlan, version: str) -> dict[str, Any]:
    """Return facts by the name under which a difference is reported."""
    return {"version of weft": version, "--nnodes": group.node.num_nodes, "--num-shard": group.num_shard,
            "model files": fingerprint_model(shard_settings["model"]),
            **{FLAG_NAMES.get(name, f"--{name.replace('_', '-')}"): shard_settings[name] for name in COMMON_SETTINGS}}


def fingerprint_model(folder: str) -> str:
    """Return a digest of a model's configuration, and of the names and sizes of its weights: they are too large to be
    read."""
    digest = hashlib.sha256()
    if folder:
        digest.update((Path(folder) / CONFIG_FILE).read_bytes())
        for path in sorted(Path(folder).glob(WEIGHT_FILES)):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:12]


def find_differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return how another host differs from the first one, or ""."""
    return ", ".join(f"{name} {other.get(name)} instead of {value}" for name, value in first.items()
                     if other.get(name) != value)
