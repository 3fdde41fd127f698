"""Lookup of the model to serve: its folder, and whether the files that a server needs are complete.

Of the files, only the index of the weights is parsed.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from launcher.hub.cache import CachedRepository

# org/name, or a name alone, as the Hub allows them: nothing else may become part of a path or of an address.
HUB_NAME_PATTERN = re.compile(r"(?!.*(--|\.\.))(?![.-])[\w.-]{1,96}(/(?![.-])[\w.-]{1,96})?", re.ASCII)
REVISION_PATTERN = re.compile(r"(?!.*(\.\.|//|/\.|/$))[\w][\w.+@#/-]{0,199}", re.ASCII)
PICKLED_WEIGHT_PATTERNS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
WEIGHT_INDEX_FILE, SINGLE_WEIGHT_FILE = "model.safetensors.index.json", "model.safetensors"


class ModelNotCachedError(ValueError):
    """The model is not on this machine, or not completely, but may be at the Hub."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Model to serve: its folder, and for a built-in one its own default settings."""

    name: str  # as the user gave it
    folder: str  # empty for the simulated model
    notice: str = ""  # a note to users
    default_settings: Mapping[str, Any] = field(default_factory=dict)  # its own defaults


BUILTIN_PREFIX = "weft/"
DEMO_MODEL, SIMULATED_MODEL = f"{BUILTIN_PREFIX}demo", f"{BUILTIN_PREFIX}simulated"
DEMO_FOLDER = Path(__file__).parents[1] / "demo"
# Built-in models. A folder of such a name must be given as ./weft/demo.
BUILTIN_MODELS = {model.name: model for model in (
    ResolvedModel(DEMO_MODEL, str(DEMO_FOLDER / "model"),
                  "a demo model with 4 million parameters; its facts are often wrong",
          # float32, so that answers are the same on every machine; a cache of only 160 MiB, for a quick try.
                  {"dtype": "float32", "max_batch_total_tokens": 32_768,
                   "adapters": True, "adapter_source": "local", "adapter_root": str(DEMO_FOLDER / "adapters")}),
    ResolvedModel(SIMULATED_MODEL, "", "no model: made-up words, at the speed of a real one"),
)}


def find_model(name: str, revision: str, cache_folder: Path) -> ResolvedModel:
    """Return a built-in model, or a folder of that name, or else a model in the Hub's cache. Raises ValueError."""
    if name in BUILTIN_MODELS:
        return BUILTIN_MODELS[name]
    if not name:
        raise ValueError("the name of the model is empty (--model-id)")
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            check_model_files(folder)
        else:
            folder = find_cached_model(name, revision or "main", cache_folder)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    return ResolvedModel(name, str(folder.absolute()))


def find_cached_model(name: str, revision: str, cache_folder: Path) -> Path:
    """Return the complete snapshot of a revision.

    Raises ModelNotCachedError, or ValueError for an invalid name or revision.
    """
    if Path(name).expanduser().is_file():
        gguf = "; GGUF files are not supported" if name.lower().endswith(".gguf") else ""
        raise ValueError(f"{name} is a file, and a model is a folder with config.json and *.safetensors{gguf}")
    if not HUB_NAME_PATTERN.fullmatch(name):
        raise ValueError(f"there is no folder {name}"
                         + ("; a model at the Hub has a name such as org/name" if is_like_ollama_name(name) else ""))
    check_not_builtin(name)
    check_revision(revision)
    cached_repository = CachedRepository(cache_folder, name)
    folder = cached_repository.get_snapshot_folder(revision)
    if not folder.is_dir():
        raise ModelNotCachedError(
            f"there is no model {name}: looked for the folder {Path(name).absolute()}, and for revision "
                                  f"{revision} in {cached_repository.folder}, the Hub's cache")
    try:
        check_model_files(folder)
    except ValueError as error:
        raise ModelNotCachedError(str(error)) from error
    return folder


def is_like_ollama_name(name: str) -> bool:
    """Whether a name is like `llama3.2:3b`."""
    return "/" not in name and ":" in name


def check_not_builtin(name: str) -> None:
    """Raise ValueError for a name below `weft/`, of which there is nothing at the Hub."""
    if name in BUILTIN_MODELS:
        raise ValueError(f"{name} comes with weft, so there is nothing to download")
    if name.startswith(BUILTIN_PREFIX):
        similar = get_close_matches(name, BUILTIN_MODELS, n=1)
        raise ValueError(f"{name} does not come with weft; " + (
            f"did you mean {similar[0]}?" if similar else f"{' and '.join(BUILTIN_MODELS)} do"))


def check_revision(revision: str) -> None:
    if not REVISION_PATTERN.fullmatch(revision):
        raise ValueError(f"--revision must be a branch, a tag or a commit of at most 200 characters, got {revision!r}")


def check_model_files(folder: Path) -> None:
    names = {path.name for path in folder.iterdir() if path.is_file()}  # a link into a cleared cache is no file
    check_model_file_names(names, str(folder))
    if missing_files := sorted(read_indexed_file_names(folder / WEIGHT_INDEX_FILE) - names if WEIGHT_INDEX_FILE in names
                               else ()):
        raise ValueError(f"{folder} lacks {missing_files[0]}, which {WEIGHT_INDEX_FILE} names" + (
            f", and {len(missing_files) - 1} more" if len(missing_files) > 1 else "") + "; is the download complete?")


def check_model_file_names(names: Collection[str], location: str) -> None:
    """Raise ValueError unless `names` include a config, safetensors weights and a fast tokenizer."""
    if "config.json" not in names:
        if "adapter_config.json" in names:
            raise ValueError(f"{location} is an adapter, not a model; serve its base model, with --adapter-root FOLDER "
                             "for the folder that it is in")
        raise ValueError(f"{location} has no config.json; the folder of a model has config.json, *.safetensors and "
                         "tokenizer.json")
    if not any(fnmatch(name, "*.safetensors") for name in names):
        raise ValueError(f"{location} has {describe_missing_safetensors(names)}")
    if "tokenizer.json" not in names:
        raise ValueError(f"{location} has no tokenizer.json, the file of a fast tokenizer, which weft needs; "
                         "transformers makes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")


def describe_missing_safetensors(names: Collection[str]) -> str:
    pickled = [name for name in names if any(fnmatch(name, pattern) for pattern in PICKLED_WEIGHT_PATTERNS)]
    if not pickled:
        return "no weights (*.safetensors)"
    return (f"its weights only in pickled form ({min(pickled)}), which may run any program when it is read; weft reads "
            "*.safetensors: choose a revision that has them, or write them with transformers' save_pretrained")


def read_indexed_file_names(index_path: Path) -> set[str]:
    """Return the files that an index names, none if it is invalid: the shards read it fully and report errors."""
    try:
        return {name for name in json.loads(index_path.read_bytes())["weight_map"].values() if isinstance(name, str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()
