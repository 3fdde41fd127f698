"""Lookup of the model to serve: its folder, and whether the files that a server needs are complete.

Of the files, only the index of the weights is parsed.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from launcher.hub.cache import Kept

# org/name, or a name alone, as the Hub allows them: nothing else may become part of a path or of an address.
HUB_NAME = re.compile(r"(?!.*(--|\.\.))(?![.-])[\w.-]{1,96}(/(?![.-])[\w.-]{1,96})?", re.ASCII)
REVISION = re.compile(r"(?!.*(\.\.|//|/\.|/$))[\w][\w.+@#/-]{0,199}", re.ASCII)
PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class Missing(ValueError):
    """The model is not on this machine, or not completely, but may be at the Hub."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str  # as the user gave it
    folder: str  # empty for the simulated model
    notice: str = ""  # a note to users
    settings: Mapping[str, Any] = field(default_factory=dict)  # its own defaults


DEMO, SIMULATED = "weft/demo", "weft/simulated"
DEMO_FOLDER = Path(__file__).parents[1] / "demo"
# Built-in models. A folder of such a name must be given as ./weft/demo.
BOX = {model.name: model for model in (
    Model(DEMO, str(DEMO_FOLDER / "model"),
          "a demo model with 4 million parameters; its facts are often wrong",
          # float32, so that answers are the same on every machine; a cache of only 160 MiB, for a quick try.
          {"dtype": "float32", "max_batch_total_tokens": 32_768,
           "adapters": True, "adapter_source": "local", "adapter_root": str(DEMO_FOLDER / "adapters")}),
    Model(SIMULATED, "", "no model: made-up words, at the speed of a real one"),
)}


def find_model(name: str, revision: str, cache: Path) -> Model:
    """Return a built-in model, or a folder of that name, or else a model in the Hub's cache. Raises ValueError."""
    if name in BOX:
        return BOX[name]
    if not name:
        raise ValueError("the name of the model is empty (--model-id)")
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            check_files(folder)
        else:
            folder = cached(name, revision or "main", cache)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    return Model(name, str(folder.absolute()))


def cached(name: str, revision: str, cache: Path) -> Path:
    """Return the complete snapshot of a revision. Raises Missing, or ValueError for an invalid name or revision."""
    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"there is no folder {name}")
    check_revision(revision)
    kept = Kept(cache, name)
    folder = kept.snapshot(revision)
    if not folder.is_dir():
        raise Missing(f"there is no model {name}: looked for the folder {Path(name).absolute()}, and for revision "
                      f"{revision} in {kept.folder}, the Hub's cache")
    try:
        check_files(folder)
    except ValueError as error:
        raise Missing(str(error)) from error
    return folder


def check_revision(revision: str) -> None:
    if not REVISION.fullmatch(revision):
        raise ValueError(f"--revision must be a branch, a tag or a commit of at most 200 characters, got {revision!r}")


def check_files(folder: Path) -> None:
    names = {path.name for path in folder.iterdir() if path.is_file()}  # a link into a cleared cache is no file
    check_names(names, str(folder))
    if lost := sorted(promised(folder / INDEX) - names if INDEX in names else ()):
        raise ValueError(f"{folder} lacks {lost[0]}, which {INDEX} names" + (
            f", and {len(lost) - 1} more" if len(lost) > 1 else "") + "; is the download complete?")


def check_names(names: Collection[str], where: str) -> None:
    """Raise ValueError unless `names` include a config, safetensors weights and a fast tokenizer."""
    if "config.json" not in names:
        raise ValueError(f"{where} has no config.json, so it is not the folder of a model as the Hub has it")
    if not any(fnmatch(name, "*.safetensors") for name in names):
        raise ValueError(f"{where} has {without_safetensors(names)}")
    if "tokenizer.json" not in names:
        raise ValueError(f"{where} has no tokenizer.json, the file of a fast tokenizer, which weft needs; "
                         "transformers makes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")


def without_safetensors(names: Collection[str]) -> str:
    pickled = [name for name in names if any(fnmatch(name, pattern) for pattern in PICKLED)]
    if not pickled:
        return "no weights (*.safetensors)"
    return (f"its weights only in pickled form ({min(pickled)}), which may run any program when it is read; weft reads "
            "*.safetensors: choose a revision that has them, or write them with transformers' save_pretrained")


def promised(index: Path) -> set[str]:
    """Return the files that an index names, none if it is invalid: the shards read it fully and report errors."""
    try:
        return {name for name in json.loads(index.read_bytes())["weight_map"].values() if isinstance(name, str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()
