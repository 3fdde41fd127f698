"""The files of a model's folder that hold its tensors: one file, or several and an index of them. The index may
be hostile, too. Errors are ValueErrors that name the file or the tensor."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple

INDEX_FILE, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
SAFETENSORS_SUFFIX, PICKLE_PATTERNS = ".safetensors", ("*.bin", "*.pt", "*.pth")
MAX_INDEX_BYTES = 100_000_000
MAX_TENSORS = 1_000_000
MAX_OBJECTS = 100  # an index has two in it, and no lists
MAX_NAMES_IN_ERROR = 3  # names listed in one error


class CheckpointFiles(NamedTuple):
    """Files that hold a model, and the file of each tensor if there is an index."""

    folder: Path
    files: list[str]
    indexed_files: Mapping[str, str]

    def check_index(self, actual_files: Mapping[str, str]) -> None:
        """Check the index against `actual_files`, the file in which each tensor is."""
        for name, file in self.indexed_files.items():
            if name not in actual_files:
                raise ValueError(f"{self.folder / file} lacks {name}, which {INDEX_FILE} promises there; "
                                 f"is the download complete?")
            if actual_files[name] != file:
                raise ValueError(
                    f"{self.folder / actual_files[name]} holds {name}, which {INDEX_FILE} promises in {file}")

    def list_unread_files(self) -> list[str]:
        """Return the folder's files with tensors that are not read."""
        return sorted({path.name for path in self.folder.glob(f"*{SAFETENSORS_SUFFIX}")} - set(self.files))


def list_checkpoint_files(folder: Path) -> CheckpointFiles:
    """Return the files of a model; raises ValueError if one is missing."""
    indexed_files = load_weight_map(folder / INDEX_FILE) if (folder / INDEX_FILE).is_file() else {}
    files = sorted(set(indexed_files.values())) or [SINGLE_FILE]
    missing = [name for name in files if not (folder / name).is_file()]
    if not missing:
        return CheckpointFiles(folder, files, indexed_files)
    if pickled := [path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern)]:
        raise ValueError(
            f"{folder} holds its weights as {join_names_with_cutoff(sorted(pickled))}, which can run code when it is "
            f"read; supported: safetensors")
    raise ValueError(f"{folder} lacks {join_names_with_cutoff(missing)}; is the download complete?")


def join_names_with_cutoff(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES_IN_ERROR]) + (" and others" if len(names) > MAX_NAMES_IN_ERROR else "")


def load_weight_map(path: Path) -> dict[str, str]:
    """Return the file of every tensor."""
    index = load_size_limited_json(path)
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{path} must have a weight_map that names the file of each tensor, got {shown(files)}")
    for name, file in files.items():
        if not name or not name.isprintable():
            raise ValueError(f"{path}: a tensor's name is made of printable characters, got {name!a}")
        # in the same folder: an index must not make the shard read other files
        if (not isinstance(file, str) or not file.isprintable() or Path(file).name != file
            or not file.endswith(SAFETENSORS_SUFFIX)):
            raise ValueError(f"{path}: {name} must be in a *{SAFETENSORS_SUFFIX} file of the same folder, got "
                             f"{shown(file)}")
    return files


def load_size_limited_json(path: Path) -> Any:
    """Load a JSON file. A text that could become large in memory is rejected before it is parsed."""
    if (size := path.stat().st_size) > MAX_INDEX_BYTES:
        raise ValueError(f"{path} must have at most {MAX_INDEX_BYTES} bytes, it has {size}")
    text = path.read_bytes()
    for counted, signs, limit in (("objects and lists", b"{[", MAX_OBJECTS), ("tensors", b",", MAX_TENSORS)):
        if (count := sum(text.count(sign) for sign in signs)) > limit:
            raise ValueError(f"{path} must have at most {limit} {counted}, it has {count}")
    try:
        return json.loads(str(text, "utf-8"), object_pairs_hook=reject_duplicate_keys)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; is the download complete?") from error


def reject_duplicate_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"it names {name!a} twice")
        values[name] = value
    return values
