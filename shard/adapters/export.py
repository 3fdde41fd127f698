"""Writer of an adapter in peft's format: adapter_model.safetensors and adapter_config.json.

The same adapter produces the same bytes. A config that `described` would reject is not written. The scale of every
module is 1, so the matrices must already include it.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from shard.adapters import config as described
from shard.adapters import files
from shard.checkpoint.safetensors_header import LENGTH, METADATA, Shape, count_bytes
from shard.json_config import Given

ALIGNED = 8  # bytes; the tensors' data begins at a multiple


def write_tensors(folder: Path, dtype: str, shapes: Mapping[str, Shape], found: Iterable[Tensor]) -> None:
    """Write the tensors one at a time; `found` yields them in the order of `shapes`. Raises ValueError."""
    with written(folder / files.FILE) as file:
        file.write(header(dtype, shapes))
        for tensor in found:
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def write_config(folder: Path, about: Mapping[str, Any], ranks: Mapping[str, int]) -> None:
    """Write the config of an adapter with these ranks by module. `about`: further settings. Raises ValueError."""
    path = folder / described.FILE
    values = dict(about) | settings(ranks)
    check(Given(values, str(path)), ranks)
    text = (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
    if len(text) > described.MOST_BYTES:
        raise ValueError(f"{path} would have {len(text)} bytes for {len(ranks)} modules, more than "
                         f"{described.MOST_BYTES}")
    with written(path) as file:
        file.write(text)


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Create a file that must not exist yet, synced to disk on exit. Raises ValueError."""
    try:
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def header(dtype: str, shapes: Mapping[str, Shape]) -> bytes:
    entries: dict[str, Any] = {METADATA: {"format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + count_bytes(name, dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return LENGTH.pack(len(text)) + text


def settings(ranks: Mapping[str, int]) -> dict[str, Any]:
    """Return settings with a scale of 1 for every module: each alpha equals the rank."""
    usual, patterns = rank_patterns(ranks)
    return {"peft_type": "LORA", "r": usual, "lora_alpha": usual, "rank_pattern": patterns, "alpha_pattern": patterns,
            "target_modules": sorted(ranks), "use_rslora": False, "bias": "none", "lora_dropout": 0.0,
            "inference_mode": True}


def rank_patterns(ranks: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Return the most common rank, and the other ranks by suffix of the module's name or, where modules of a suffix
    differ, by whole name. The longest patterns come first, because peft uses the first one that matches."""
    usual = most(ranks.values())
    by_end: dict[str, dict[str, int]] = defaultdict(dict)
    for module, rank in ranks.items():
        by_end[module.rpartition(".")[2]][module] = rank
    patterns: dict[str, int] = {}
    for end, members in by_end.items():
        patterns[end] = most(members.values())
        patterns |= {files.plain(module): rank for module, rank in members.items() if rank != patterns[end]}
    return usual, {re.escape(name): rank for name, rank in sorted(patterns.items(), key=lambda item: -len(item[0]))
                   if name not in by_end or rank != usual}


def most(ranks: Iterable[int]) -> int:
    return Counter(ranks).most_common(1)[0][0]


def check(given: Given, ranks: Mapping[str, int]) -> None:
    """Check that the config can be read back and gives every module its rank and a scale of 1."""
    config = described.described(given)
    for module, rank in ranks.items():
        if config.rank_of(module) != rank or config.scale_of(module) != 1:
            raise ValueError(f"{given.source} has no words for a rank of {rank} of {module} beside the ranks of others")
