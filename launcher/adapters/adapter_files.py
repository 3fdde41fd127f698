"""Contents of an adapter: the two files that peft writes, their checks and their digest.

The digest of the files identifies an adapter, whatever source it comes from. Only checks that need no model are done
here; the shards do the others.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from launcher.adapters.errors import AdapterError
from launcher.console_output import format_bytes
from shard.checkpoint.safetensors_file import Shape, read_file_header

CONFIG_FILE, WEIGHTS_FILE, PICKLED_WEIGHTS_FILE = ("adapter_config.json", "adapter_model.safetensors",
                                                   "adapter_model.bin")
ADAPTER_FILES = (CONFIG_FILE, WEIGHTS_FILE)
MAX_FILE_BYTES = {CONFIG_FILE: 2**20, WEIGHTS_FILE: 16 * 2**30}
DIGEST_PREFIX = b"weft adapter\0"
CHUNK_BYTES = 2**20
BASE_MODEL_KEY = "base_model_name_or_path"
LORA_A_PATTERN, LORA_B_PATTERN = re.compile(r"\.lora_(embedding_)?A\b"), re.compile(r"\.lora_(embedding_)?B\b")
MIN_SLOT_RANK = 8  # shards round ranks up to a power of two, at least to this
MAX_ELEMENT_BYTES = 4  # maximum bytes per element once loaded


class AdapterFileSummary(NamedTuple):
    """Sizes and base model of an adapter, read from its two files."""

    file_bytes: int  # of both files
    max_loaded_bytes: int  # upper bound of the bytes that the loaded adapter takes
    base_model: str  # the base model that its config names, or ""


def compute_digest(folder: Path) -> str:
    digest = hashlib.sha256(DIGEST_PREFIX)
    for path in (folder / name for name in ADAPTER_FILES):
        digest.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def read_adapter_metadata(folder: Path) -> AdapterFileSummary:
    """Read and check both files. Raises ValueError if they are no valid adapter."""
    sizes = {name: (folder / name).stat().st_size for name in ADAPTER_FILES}
    check_adapter_file_sizes(sizes)
    base = read_base_model_name(folder)
    try:
        with (folder / WEIGHTS_FILE).open("rb") as file:
            entries = read_file_header(file, sizes[WEIGHTS_FILE])
    except ValueError as error:
        raise ValueError(f"{WEIGHTS_FILE}: {error}") from None
    return AdapterFileSummary(sum(sizes.values()),
                           compute_max_loaded_bytes({name: entry.shape for name, entry in entries.items()}), base)


def check_adapter_file_names(names: Collection[str], location: str) -> None:
    """Raise AdapterError unless `names` include a config and safetensors weights."""
    if CONFIG_FILE not in names:
        raise AdapterError("invalid", f"{location} has no {CONFIG_FILE}, so it is no adapter as peft writes it")
    if WEIGHTS_FILE in names:
        return
    if PICKLED_WEIGHTS_FILE in names:
        raise AdapterError(
            "invalid",
            f"{location} has its weights only in {PICKLED_WEIGHTS_FILE}, which is pickled and may run any program "
            f"when it is read; convert it to {WEIGHTS_FILE}")
    raise AdapterError("invalid", f"{location} has no {WEIGHTS_FILE}")


def check_adapter_file_sizes(sizes: Mapping[str, int]) -> None:
    for name, max_bytes in MAX_FILE_BYTES.items():
        if sizes[name] > max_bytes:
            raise ValueError(f"{name} must have at most {format_bytes(max_bytes)}, it has {format_bytes(sizes[name])}")


def read_base_model_name(folder: Path) -> str:
    """Check the config and return the name of the base model. Raises ValueError."""
    config = parse_adapter_config((folder / CONFIG_FILE).read_bytes())
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{CONFIG_FILE}: peft_type must be LORA, got {config.get('peft_type')!r:.50}")
    base = config.get(BASE_MODEL_KEY) or ""
    if not isinstance(base, str):
        raise ValueError(f"{CONFIG_FILE}: {BASE_MODEL_KEY} must be a string, got {base!r:.50}")
    return base


def parse_adapter_config(text: bytes) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{CONFIG_FILE} is not JSON") from None
    if not isinstance(values, dict):
        raise ValueError(f"{CONFIG_FILE} must be a JSON object, it is {values!r:.50}")
    return values


def compute_max_loaded_bytes(shapes: Mapping[str, Shape]) -> int:
    """Return an upper bound. Every matrix of an adapter is padded to the slot size of the highest rank."""
    ranks = [shape[axis] for name, shape in shapes.items() if (axis := find_rank_axis(name, shape)) is not None]
    slot_rank = round_up_to_slot_rank(max(ranks, default=0))
    return sum(MAX_ELEMENT_BYTES
               * prod(slot_rank if axis == find_rank_axis(name, shape) else size for axis, size in enumerate(shape))
               for name, shape in shapes.items() if prod(shape))


def find_rank_axis(tensor_name: str, shape: Shape) -> int | None:
    """Return the axis of a LoRA matrix that is its rank, or None for any other tensor."""
    if len(shape) != 2:
        return None
    return 0 if LORA_A_PATTERN.search(tensor_name) else 1 if LORA_B_PATTERN.search(tensor_name) else None


def round_up_to_slot_rank(rank: int) -> int:
    return max(MIN_SLOT_RANK, 1 << max(rank - 1, 0).bit_length())
