"""The files of a model's folder that hold its tensors: one file, or several and an index of them.

The index may be hostile, too. Errors are ValueErrors that name the file or the tensor.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
SAFE, PICKLED = ".safetensors", ("*.bin", "*.pt", "*.pth")
MAX_BYTES = 100_000_000
MAX_TENSORS = 1_000_000
MAX_OBJECTS = 100  # an index has two in it, and no lists
MOST_NAMED = 3  # names listed in one error


class Listing(NamedTuple):
    """Files that hold a model, and the file of each tensor if there is an index."""

    folder: Path
    files: list[str]
    promised: Mapping[str, str]

    def check(self, found: Mapping[str, str]) -> None:
        """Check the index against `found`, the file in which each tensor is."""
        for name, file in self.promised.items():
            if name not in found:
                raise ValueError(f"{self.folder / file} lacks {name}, which {INDEX} promises there; "
                                 f"is the download complete?")
            if found[name] != file:
                raise ValueError(f"{self.folder / found[name]} holds {name}, which {INDEX} promises in {file}")

    def beside(self) -> list[str]:
        """Return the folder's files with tensors that are not read."""
        return sorted({path.name for path in self.folder.glob(f"*{SAFE}")} - set(self.files))


def list_files(folder: Path) -> Listing:
    """Return the files of a model; raises ValueError if one is missing."""
    promised = read_index(folder / INDEX) if (folder / INDEX).is_file() else {}
    files = sorted(set(promised.values())) or [SINGLE]
    missing = [name for name in files if not (folder / name).is_file()]
    if not missing:
        return Listing(folder, files, promised)
    if pickled := [path.name for pattern in PICKLED for path in folder.glob(pattern)]:
        raise ValueError(f"{folder} holds its weights as {some(sorted(pickled))}, which can run code when it is "
                         f"read; supported: safetensors")
    raise ValueError(f"{folder} lacks {some(missing)}; is the download complete?")


def some(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (" and others" if len(names) > MOST_NAMED else "")


def read_index(path: Path) -> dict[str, str]:
    """Return the file of every tensor."""
    read = read_json(path)
    files = read.get("weight_map") if isinstance(read, dict) else None
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{path} must have a weight_map that names the file of each tensor, got {shown(files)}")
    for name, file in files.items():
        check_file(path, name, file)
    return files


def check_file(path: Path, name: str, file: object) -> None:
    """Check that a tensor's file is in the same folder: an index must not make the shard read other files."""
    if not name or not name.isprintable():
        raise ValueError(f"{path}: a tensor's name is made of printable characters, got {name!a}")
    if not isinstance(file, str) or not file.isprintable() or Path(file).name != file or not file.endswith(SAFE):
        raise ValueError(f"{path}: {name} must be in a *{SAFE} file of the same folder, got {shown(file)}")


def read_json(path: Path) -> Any:
    """Read a JSON file. A text that could become large in memory is rejected before it is parsed."""
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path} must have at most {MAX_BYTES} bytes, it has {size}")
    text = path.read_bytes()
    for what, signs, most in (("objects and lists", b"{[", MAX_OBJECTS), ("tensors", b",", MAX_TENSORS)):
        if (count := sum(text.count(sign) for sign in signs)) > most:
            raise ValueError(f"{path} must have at most {most} {what}, it has {count}")
    try:
        return json.loads(str(text, "utf-8"), object_pairs_hook=unique)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; is the download complete?") from error


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, value in pairs:
        if name in read:
            raise ValueError(f"it names {name!a} twice")
        read[name] = value
    return read
