"""An adapter's folder, written as peft writes one: adapter_model.safetensors and adapter_config.json.

The same adapter makes the same bytes. What its own reader would not take is not written. Knows nothing of where the
matrices come from; their products are added as they are, without a scale.
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

from shard.adapters import described, tensors
from shard.given import Given
from shard.header import LENGTH, METADATA, Shape, count_bytes

ALIGNED = 8  # bytes; the numbers begin at a multiple


def write_tensors(folder: Path, dtype: str, shapes: Mapping[str, Shape], found: Iterable[Tensor]) -> None:
    """One at a time, in the order of `shapes`. Raises ValueError."""
    with written(folder / tensors.FILE) as file:
        file.write(header(dtype, shapes))
        for tensor in found:
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def write_config(folder: Path, about: Mapping[str, Any], ranks: Mapping[str, int]) -> None:
    """Of an adapter for modules of these ranks. `about` are settings that say nothing of them. Raises ValueError."""
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
    """A new file, on the disk when it is left."""
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
    """Whose scale is 1 everywhere: an alpha of each rank."""
    usual, patterns = rank_patterns(ranks)
    return {"peft_type": "LORA", "r": usual, "lora_alpha": usual, "rank_pattern": patterns, "alpha_pattern": patterns,
            "target_modules": sorted(ranks), "use_rslora": False, "bias": "none", "lora_dropout": 0.0,
            "inference_mode": True}


def rank_patterns(ranks: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """The rank of most, and of others by the ends of their names, or by all of a name where that is not enough. The
    longest come first, since the first that matches counts."""
    usual = most(ranks.values())
    by_end: dict[str, dict[str, int]] = defaultdict(dict)
    for module, rank in ranks.items():
        by_end[module.rpartition(".")[2]][module] = rank
    patterns: dict[str, int] = {}
    for end, members in by_end.items():
        patterns[end] = most(members.values())
        patterns |= {tensors.plain(module): rank for module, rank in members.items() if rank != patterns[end]}
    return usual, {re.escape(name): rank for name, rank in sorted(patterns.items(), key=lambda item: -len(item[0]))
                   if name not in by_end or rank != usual}


def most(ranks: Iterable[int]) -> int:
    return Counter(ranks).most_common(1)[0][0]


def check(given: Given, ranks: Mapping[str, int]) -> None:
    """That a reader takes it, and takes it for what it is."""
    config = described.described(given)
    for module, rank in ranks.items():
        if config.rank_of(module) != rank or config.scale_of(module) != 1:
            raise ValueError(f"{given.source} has no words for a rank of {rank} of {module} beside the ranks of others")
