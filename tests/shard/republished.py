"""A small model as those of its family were published: with older names of tensors, and with tensors that follow from
the config."""

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
    """In `target`. Files that are not about the model are left out."""
    target.mkdir()
    tensors = load_file(folder / WEIGHTS)
    save_file({name(each): tensor for each, tensor in tensors.items()} | (extra or {}), target / WEIGHTS)
    (target / "config.json").write_text(json.dumps(config(json.loads((folder / "config.json").read_text()))))
    shutil.copy(folder / "tokenizer.json", target)
    return target
