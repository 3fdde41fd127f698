"""Copies of small checkpoints in the layout of older releases: older tensor names, and redundant tensors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"


def republished(folder: Path, target: Path, *, name: Callable[[str], str] = str, extra: dict[str, Tensor] | None = None,
                config: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Path:
    """Write the renamed copy to `target` and return it: weights, config and tokenizer only."""
    target.mkdir()
    tensors = load_file(folder / WEIGHTS)
    save_file({name(each): tensor for each, tensor in tensors.items()} | (extra or {}), target / WEIGHTS)
    (target / "config.json").write_text(json.dumps(config(json.loads((folder / "config.json").read_text()))))
    shutil.copy(folder / "tokenizer.json", target)
    return target
