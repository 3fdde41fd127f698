"""The model to serve: where its files are, and whether those that a server needs are there.

Knows the layout of folders, not what is in the files.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")  # org/name, or a name alone
PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Model:
    name: str  # as the user gave it
    folder: str


def find_model(name: str, revision: str, cache: Path) -> Model:
    """A folder of that name, or else the model of that name in the Hub's cache. Raises ValueError."""
    try:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            folder = cached(name, revision or "main", cache)
        check_files(folder)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    return Model(name, str(folder.absolute()))


def cached(name: str, revision: str, cache: Path) -> Path:
    """The cache holds `refs/REVISION`, the commit of a branch or tag, and `snapshots/COMMIT`, the files."""
    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"there is no folder {name}")
    kept = cache / f"models--{name.replace('/', '--')}"
    ref = kept / "refs" / revision
    folder = kept / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision)
    if not folder.is_dir():
        raise ValueError(
            f"there is no model {name}: looked for the folder {Path(name).absolute()}, and for revision {revision} in "
            f"{kept}, the Hub's cache; weft does not download yet, `hf download {name} --revision {revision}` does")
    return folder


def check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} has no config.json, so it is not the folder of a model as the Hub has it")
    if not any(found(folder, "*.safetensors")):
        raise ValueError(f"{folder} has {without_safetensors(folder)}")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} has no tokenizer.json, the file of a fast tokenizer, which weft needs; "
                         "transformers makes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")


def without_safetensors(folder: Path) -> str:
    pickled = [path.name for pattern in PICKLED for path in found(folder, pattern)]
    if not pickled:
        return "no weights (*.safetensors)"
    return (f"its weights only in pickled form ({min(pickled)}), which may run any program when it is read; weft reads "
            "*.safetensors: choose a revision that has them, or write them with transformers' save_pretrained")


def found(folder: Path, pattern: str) -> Iterator[Path]:
    """Files: a link into a cache that was cleared is none."""
    return (path for path in folder.glob(pattern) if path.is_file())
