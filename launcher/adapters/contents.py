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

from launcher.adapters.errors import Refused
from launcher.adapters.header import Shape, read_shapes
from launcher.hub.progress_bar import amount

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
FILES = (CONFIG, WEIGHTS)
MOST_BYTES = {CONFIG: 2**20, WEIGHTS: 16 * 2**30}
TAG = b"weft adapter\0"
PIECE = 2**20
BASE = "base_model_name_or_path"
DOWN, UP = re.compile(r"\.lora_(embedding_)?A\b"), re.compile(r"\.lora_(embedding_)?B\b")
LEAST_RANK = 8  # shards round ranks up to a power of two, at least to this
WIDTH = 4  # maximum bytes per element once loaded


class Contents(NamedTuple):
    bytes: int  # of both files
    takes: int  # upper bound of the bytes that the loaded adapter takes
    base: str  # the base model that its config names, or ""


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256(TAG)
    for path in (folder / name for name in FILES):
        digest.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    return digest.hexdigest()


def read_contents(folder: Path) -> Contents:
    """Read and check both files. Raises ValueError if they are no valid adapter."""
    sizes = {name: (folder / name).stat().st_size for name in FILES}
    check_sizes(sizes)
    base = read_base(folder)
    try:
        with (folder / WEIGHTS).open("rb") as file:
            shapes = read_shapes(file, sizes[WEIGHTS])
    except ValueError as error:
        raise ValueError(f"{WEIGHTS}: {error}") from None
    return Contents(sum(sizes.values()), bytes_when_loaded(shapes), base)


def check_names(names: Collection[str], where: str) -> None:
    """Raise Refused unless `names` include a config and safetensors weights."""
    if CONFIG not in names:
        raise Refused("invalid", f"{where} has no {CONFIG}, so it is no adapter as peft writes it")
    if WEIGHTS in names:
        return
    if PICKLED in names:
        raise Refused("invalid", f"{where} has its weights only in {PICKLED}, which is pickled and may run any program "
                                 f"when it is read; convert it to {WEIGHTS}")
    raise Refused("invalid", f"{where} has no {WEIGHTS}")


def check_sizes(sizes: Mapping[str, int]) -> None:
    for name, most in MOST_BYTES.items():
        if sizes[name] > most:
            raise ValueError(f"{name} must have at most {amount(most)}, it has {amount(sizes[name])}")


def read_base(folder: Path) -> str:
    """Check the config and return the name of the base model. Raises ValueError."""
    config = read_object((folder / CONFIG).read_bytes())
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{CONFIG}: peft_type must be LORA, got {config.get('peft_type')!r:.50}")
    base = config.get(BASE) or ""
    if not isinstance(base, str):
        raise ValueError(f"{CONFIG}: {BASE} must be a string, got {base!r:.50}")
    return base


def read_object(text: bytes) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{CONFIG} is not JSON") from None
    if not isinstance(values, dict):
        raise ValueError(f"{CONFIG} must be a JSON object, it is {values!r:.50}")
    return values


def bytes_when_loaded(shapes: Mapping[str, Shape]) -> int:
    """Return an upper bound. Every matrix of an adapter is padded to the slot size of the highest rank."""
    ranks = [shape[axis] for name, shape in shapes.items() if (axis := rank_axis(name, shape)) is not None]
    room = room_for(max(ranks, default=0))
    return sum(WIDTH * prod(room if place == rank_axis(name, shape) else size for place, size in enumerate(shape))
               for name, shape in shapes.items() if prod(shape))


def rank_axis(name: str, shape: Shape) -> int | None:
    """Return the axis of a LoRA matrix that is its rank, or None for any other tensor."""
    if len(shape) != 2:
        return None
    return 0 if DOWN.search(name) else 1 if UP.search(name) else None


def room_for(rank: int) -> int:
    return max(LEAST_RANK, 1 << max(rank - 1, 0).bit_length())
