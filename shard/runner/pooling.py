"""Pooling: from the hidden states of a text's tokens to its embedding, as configured in the model's folder.

sentence-transformers keeps that in `modules.json` and `1_Pooling/config.json`; settings that are not implemented here
are rejected by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shard.attention.encoder import rows_of
from shard.json_config import Given

MODULES, POOLING = "modules.json", "1_Pooling"
FLAG = "pooling_mode_"  # prefix of each kind's key
KINDS = {"cls_token": "first", "mean_tokens": "mean", "lasttoken": "last"}  # by the rest of the key: key in REDUCTIONS
STAGES = ("Transformer", "Pooling", "Normalize")
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {  # [tokens, hidden] -> [hidden]
    "first": lambda hidden: hidden[0],
    "mean": lambda hidden: hidden.mean(0),
    "last": lambda hidden: hidden[-1],
}


@dataclass(frozen=True, slots=True)
class Pooling:
    kind: str  # a key in REDUCTIONS
    width: int  # of the embedding: this many first values are kept
    normalized: bool = False

    def embeddings(self, hidden: Tensor, lengths: Sequence[int]) -> list[list[float] | None]:
        """Return the embeddings of texts of these lengths, concatenated in `hidden`; None where one is not finite."""
        vectors = torch.stack([self.pooled(hidden[rows]) for rows in rows_of(lengths)]).cpu()  # [texts, width]
        told = zip(vectors.tolist(), vectors.isfinite().all(-1).tolist(), strict=True)
        return [vector if is_fine else None for vector, is_fine in told]

    def pooled(self, hidden: Tensor) -> Tensor:
        """Return `[width]` in float32 from `[tokens, hidden]` of one text. Its bits depend on the text alone, since
        each text is summed in its own shape."""
        vector = REDUCTIONS[self.kind](hidden.float())[:self.width]
        return functional.normalize(vector, dim=0) if self.normalized else vector


def read_pooling(folder: Path, usual: str, hidden_size: int, embedding_dim: int) -> Pooling:
    """Read the pooling of a model. `usual` is the kind if the folder has none; `embedding_dim` is the setting."""
    if embedding_dim > hidden_size:
        raise ValueError(f"--embedding-dim must be at most {hidden_size}, which is what the model has, got "
                         f"{embedding_dim}")
    stages = read_stages(folder)
    path = folder / (stages.get("Pooling") or POOLING) / "config.json"
    kind = read_kind(Given(read_object(path), str(path))) if path.is_file() else usual
    return Pooling(kind, embedding_dim or hidden_size, "Normalize" in stages)


def read_stages(folder: Path) -> dict[str, str]:
    """Return the stages of modules.json, and the folder of each."""
    path = folder / MODULES
    if not path.is_file():
        return {}
    stages = {}
    for stage in read_json(path, list):
        if not isinstance(stage, Mapping):
            raise ValueError(f"{path}: a module must be an object, got {stage!r}")
        given = Given(dict(stage), str(path))
        name = str(given.get("type")).rpartition(".")[2]
        stages[given.one_of("module", name, STAGES)] = str(given.get("path") or "")
    return stages


def read_kind(given: Given) -> str:
    chosen = [name.removeprefix(FLAG) for name, value in given.values.items() if value is True and FLAG in name]
    if len(chosen) != 1:
        raise ValueError(f"{given.source}: one way of pooling must be chosen, got {', '.join(chosen) or 'none'}")
    return KINDS[given.one_of("pooling_mode", chosen[0], KINDS)]


def read_object(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(path, dict)
    return found


def read_json(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{path} must hold a JSON {'object' if kind is dict else 'list'}")
    return found
