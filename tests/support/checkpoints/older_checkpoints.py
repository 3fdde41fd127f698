"""Copies of small checkpoints in the layout of older releases: older tensor names, and redundant tensors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS_FILE = "model.safetensors"


def write_converted_checkpoint(folder: Path, target: Path, *, rename_tensor: Callable[[str], str] = str,
                               extra_tensors: dict[str, Tensor] | None = None,
                               change_config: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Path:
    """Write the renamed copy to `target` and return it: weights, config and tokenizer only."""
    target.mkdir()
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({rename_tensor(each): tensor for each, tensor in tensors.items()} | (extra_tensors or {}),
              target / WEIGHTS_FILE)
    (target / "config.json").write_text(json.dumps(change_config(json.loads((folder / "config.json").read_text()))))
    shutil.copy(folder / "tokenizer.json", target)
    return target
