"""The two files of a LoRA adapter as bytes, made without torch or peft.

    files = make_adapter_files(seed=1)
    write_files(folder, files)
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from support.checkpoints.header_mutations import join_safetensors

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
Q_PROJ_MODULE, V_PROJ_MODULE = ("base_model.model.model.layers.0.self_attn.q_proj",
                                "base_model.model.model.layers.0.self_attn.v_proj")


def make_adapter_files(seed: int = 0, rank: int = 4, width: int = 16, **config: Any) -> dict[str, bytes]:
    """Return config and weights of an adapter of two linears; different seeds give different weights."""
    shapes = {f"{module}.lora_{part}.weight": [rank, width] if part == "A" else [width, rank]
              for module in (Q_PROJ_MODULE, V_PROJ_MODULE) for part in "AB"}
    settings = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": rank, "lora_alpha": 8,
                "target_modules": ["q_proj", "v_proj"]} | config
    return {CONFIG_FILE: json.dumps(settings).encode(), WEIGHTS_FILE: make_random_safetensors(shapes, seed)}


def make_random_safetensors(shapes: Mapping[str, list[int]], seed: int = 0) -> bytes:
    """Return a safetensors file with random float32 tensors of these shapes."""
    random, header, tensor_bytes = Random(seed), {}, b""
    for name, shape in shapes.items():
        start, count = len(tensor_bytes), shape[0] * shape[1]
        tensor_bytes += struct.pack(f"<{count}f", *(random.gauss(0, 1) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(tensor_bytes)]}
    return join_safetensors(header, tensor_bytes)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def list_stored_versions(store: Path) -> set[str]:
    """Return the names of all versions in an adapter store."""
    return {path.name for path in (store / "versions").iterdir()}


def list_incomplete_downloads(store: Path) -> list[Path]:
    """Return the unfinished and abandoned downloads of an adapter store."""
    return list((store / "incoming").iterdir())
