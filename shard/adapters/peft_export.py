"""Writer of an adapter in peft's format: adapter_model.safetensors and adapter_config.json.

The same adapter produces the same bytes. A config that `parse_adapter_config` would reject is not written. The scale of
every module is 1, so the matrices must already include it.
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

from shard.adapters.adapter_tensors import WEIGHTS_FILE, strip_wrapper_prefixes
from shard.adapters.config import CONFIG_FILE, MAX_CONFIG_BYTES, parse_adapter_config
from shard.checkpoint.safetensors_file import HEADER_LENGTH_STRUCT, METADATA_KEY, Shape, count_tensor_bytes
from shard.json_config import JsonConfig

DATA_ALIGNMENT_BYTES = 8  # bytes; the tensors' data begins at a multiple


def write_adapter_tensors(folder: Path, dtype: str, shapes: Mapping[str, Shape], tensors: Iterable[Tensor]) -> None:
    """Write the tensors one at a time; `tensors` yields them in the order of `shapes`. Raises ValueError."""
    with create_synced_file(folder / WEIGHTS_FILE) as file:
        file.write(make_safetensors_header(dtype, shapes))
        for tensor in tensors:
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def write_adapter_config(folder: Path, extra_settings: Mapping[str, Any], rank_by_module: Mapping[str, int]) -> None:
    """Write the config of an adapter with these ranks by module, and further settings. Raises ValueError."""
    path = folder / CONFIG_FILE
    default_rank, patterns = make_rank_patterns(rank_by_module)
    # with a scale of 1 for every module: each alpha equals the rank
    values = dict(extra_settings) | {
        "peft_type": "LORA", "r": default_rank, "lora_alpha": default_rank, "rank_pattern": patterns,
        "alpha_pattern": patterns, "target_modules": sorted(rank_by_module), "use_rslora": False, "bias": "none",
        "lora_dropout": 0.0, "inference_mode": True}
    # The config can be read back and gives every module its rank and a scale of 1.
    config = parse_adapter_config(JsonConfig(values, str(path)))
    for module, rank in rank_by_module.items():
        if config.rank_for_module(module) != rank or config.scale_for_module(module) != 1:
            raise ValueError(f"{path} has no words for a rank of {rank} of {module} beside the ranks of others")
    text = (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
    if len(text) > MAX_CONFIG_BYTES:
        raise ValueError(f"{path} would have {len(text)} bytes for {len(rank_by_module)} modules, more than "
                         f"{MAX_CONFIG_BYTES}")
    with create_synced_file(path) as file:
        file.write(text)


@contextmanager
def create_synced_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file that must not exist yet, synced to disk on exit. Raises ValueError."""
    try:
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def make_safetensors_header(dtype: str, shapes: Mapping[str, Shape]) -> bytes:
    entries: dict[str, Any] = {METADATA_KEY: {"format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + count_tensor_bytes(name, dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % DATA_ALIGNMENT_BYTES)
    return HEADER_LENGTH_STRUCT.pack(len(text)) + text


def make_rank_patterns(rank_by_module: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Return the most common rank, and the other ranks by suffix of the module's name or, where modules of a suffix
    differ, by whole name. The longest patterns come first, because peft uses the first one that matches."""
    default_rank = most_common_rank(rank_by_module.values())
    ranks_by_suffix: dict[str, dict[str, int]] = defaultdict(dict)
    for module, rank in rank_by_module.items():
        ranks_by_suffix[module.rpartition(".")[2]][module] = rank
    patterns: dict[str, int] = {}
    for suffix, suffix_ranks in ranks_by_suffix.items():
        patterns[suffix] = most_common_rank(suffix_ranks.values())
        patterns |= {strip_wrapper_prefixes(module): rank for module, rank in suffix_ranks.items()
                     if rank != patterns[suffix]}
    return default_rank, {re.escape(name): rank
                          for name, rank in sorted(patterns.items(), key=lambda item: -len(item[0]))
                          if name not in ranks_by_suffix or rank != default_rank}


def most_common_rank(ranks: Iterable[int]) -> int:
    return Counter(ranks).most_common(1)[0][0]
