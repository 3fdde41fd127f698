"""Pooling: from the hidden states of a text's tokens to its embedding, as sentence-transformers configures it in the
model's folder. Settings that are not implemented here are rejected by name."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shard.attention.encoder import iter_text_slices
from shard.json_config import JsonConfig

MODULES_FILE, POOLING_FOLDER = "modules.json", "1_Pooling"
MODE_KEY_PREFIX = "pooling_mode_"  # prefix of each kind's key
# by the rest of the key: key in REDUCTIONS
REDUCTION_BY_MODE = {"cls_token": "first", "mean_tokens": "mean", "lasttoken": "last"}
SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {  # [tokens, hidden] -> [hidden]
    "first": lambda hidden: hidden[0],
    "mean": lambda hidden: hidden.mean(0),
    "last": lambda hidden: hidden[-1],
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """Pooling of a text's hidden states into one embedding."""

    reduction: str  # a key in REDUCTIONS
    embedding_dim: int  # this many first values are kept
    normalizes: bool = False

    def compute_embeddings(self, hidden_states: Tensor, lengths: Sequence[int]) -> list[list[float] | None]:
        """Return the embeddings of texts of these lengths, concatenated in `hidden_states`; None where one is not
        finite."""
        # [texts, embedding_dim]
        vectors = torch.stack([self.pool_text(hidden_states[rows]) for rows in iter_text_slices(lengths)]).cpu()
        rows = zip(vectors.tolist(), vectors.isfinite().all(-1).tolist(), strict=True)
        return [vector if is_finite else None for vector, is_finite in rows]

    def pool_text(self, hidden_states: Tensor) -> Tensor:
        """Return `[embedding_dim]` in float32 from `[tokens, hidden_size]` of one text:
        docs/concepts/exactness.md, "Each text by itself"."""
        vector = REDUCTIONS[self.reduction](hidden_states.float())[:self.embedding_dim]
        return functional.normalize(vector, dim=0) if self.normalizes else vector


def load_pooling(folder: Path, default_reduction: str, hidden_size: int, embedding_dim: int) -> Pooling:
    """Load the pooling of a model. `default_reduction` is the kind if the folder has none; `embedding_dim` is the
    setting."""
    if embedding_dim > hidden_size:
        raise ValueError(f"--embedding-dim must be at most {hidden_size}, which is what the model has, got "
                         f"{embedding_dim}")
    module_folders = read_module_folders(folder)
    path, reduction = folder / (module_folders.get("Pooling") or POOLING_FOLDER) / "config.json", default_reduction
    if path.is_file():
        config = JsonConfig(load_json(path, dict), str(path))
        modes = [name.removeprefix(MODE_KEY_PREFIX) for name, value in config.values.items()
                 if value is True and MODE_KEY_PREFIX in name]
        if len(modes) != 1:
            raise ValueError(f"{path}: one way of pooling must be chosen, got {', '.join(modes) or 'none'}")
        reduction = REDUCTION_BY_MODE[config.require_supported("pooling_mode", modes[0], REDUCTION_BY_MODE)]
    return Pooling(reduction, embedding_dim or hidden_size, "Normalize" in module_folders)


def read_module_folders(folder: Path) -> dict[str, str]:
    """Return the modules of modules.json, and the folder of each."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return {}
    module_folders = {}
    for module in load_json(path, list):
        if not isinstance(module, Mapping):
            raise ValueError(f"{path}: a module must be an object, got {module!r}")
        module_config = JsonConfig(dict(module), str(path))
        name = str(module_config.get("type")).rpartition(".")[2]
        module_folders[module_config.require_supported("module", name, SUPPORTED_MODULES)] = str(
            module_config.get("path") or "")
    return module_folders


def load_json(path: Path, expected_type: type) -> Any:
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, expected_type):
        raise ValueError(f"{path} must hold a JSON {'object' if expected_type is dict else 'list'}")
    return value
