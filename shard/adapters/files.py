"""Reader of an adapter's tensors by module: LoRA matrices, or a full replacement of the base's weight.

    base_model.model.<module>.lora_A.weight            [rank, in]
    base_model.model.<module>.lora_B.weight            [out, rank]
    base_model.model.<module>.lora_embedding_A         [rank, vocabulary]
    base_model.model.<module>.lora_embedding_B         [width, rank]
    base_model.model.<module>.weight                   shape of the base's weight

The caller must read every tensor: `check_claimed` rejects an adapter with unread ones. Matrices are not split by shard
here.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.config import AdapterConfig, read_adapter_config
from shard.checkpoint.reader import COMPUTED
from shard.checkpoint.safetensors_file import TensorFile, opened
from shard.checkpoint.safetensors_header import Entry, Shape

FILE = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
PREFIX = "base_model.model."
# Prefixes of wrapper modules, which differ between the model that was trained and the one that was saved.
WRAPPINGS = re.compile(r"^(?:(?:model|language_model|transformer|gpt_neox)\.)+")
DOWN, UP = (".lora_A.weight", ".lora_embedding_A"), (".lora_B.weight", ".lora_embedding_B")
BESIDE = ".base_layer.weight"  # copy of the base's weight, which peft saves with an embedding's adapter; not used
WHOLE = ".weight"


def plain(module: str) -> str:
    """Return the module's name without the prefixes of wrapper modules."""
    return WRAPPINGS.sub("", module)


class Matrices(NamedTuple):
    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank], scaled


class Parts(NamedTuple):
    """Names of a module's tensors in the file; empty where there is none."""

    down: str = ""
    up: str = ""
    whole: str = ""


class AdapterTensors:
    """Tensors of an open adapter file by module, each checked when it is read."""

    def __init__(self, config: AdapterConfig, file: TensorFile) -> None:
        self.config = config
        self._file = file
        self._unclaimed = set(file.entries)
        self._modules: dict[str, Parts] = {}
        for name in file.entries:
            self._note(name)

    @property
    def modules(self) -> Mapping[str, Parts]:
        """Tensor names by module, without wrapper prefixes."""
        return self._modules

    @property
    def strangers(self) -> list[str]:
        """Names of tensors that do not have the form of a module's tensor."""
        return sorted(self._unclaimed.difference(*self._modules.values()))

    def entry(self, name: str) -> Entry:
        return self._file.entries[name]

    def read(self, name: str) -> Tensor:
        """Read the tensor in its stored shape, as float32."""
        return self._read(name, self.entry(name).shape)

    def matrices(self, module: str, shape: tuple[int, int]) -> Matrices | None:
        """Return the float32 matrices for a weight of `shape`, [out, in]; None if the adapter does not change it."""
        parts = self._modules.get(plain(module), Parts())
        if not (parts.down or parts.up):
            return None
        if not (parts.down and parts.up):
            raise ValueError(f"{self._file.path} has {parts.down or parts.up} without the other matrix of {module}")
        rank = self.config.rank_of(module)
        down, up = self._read(parts.down, (rank, shape[1])), self._read(parts.up, (shape[0], rank))
        return Matrices(down, up.mul_(self.config.scale_of(module)))

    def whole(self, module: str, shape: Shape) -> Tensor | None:
        """Return the float32 weight that replaces the base's, if there is one."""
        name = self._modules.get(plain(module), Parts()).whole
        return self._read(name, shape) if name else None

    def check_claimed(self) -> None:
        if self._unclaimed:
            names = sorted(self._unclaimed)
            raise ValueError(f"{self._file.path}: this model has no product for {', '.join(names[:3])}"
                             f"{' and others' if len(names) > 3 else ''}; is it an adapter of this model?")

    def _note(self, name: str) -> None:
        module = name.removeprefix(PREFIX)
        if module.endswith(BESIDE):
            self._unclaimed.discard(name)
            return
        for ends, field in ((DOWN, "down"), (UP, "up"), ((WHOLE,), "whole")):
            for end in ends:
                if module.endswith(end):
                    self._put(plain(module.removesuffix(end)), field, name)
                    return

    def _put(self, module: str, field: str, name: str) -> None:
        parts = self._modules.get(module, Parts())
        if getattr(parts, field):
            raise ValueError(f"{self._file.path} has both {getattr(parts, field)} and {name} for the same product")
        self._modules[module] = parts._replace(**{field: name})

    def _read(self, name: str, shape: Shape) -> Tensor:
        entry = self._file.entries[name]
        self._check(name, entry, shape)
        stored = torch.empty(shape, dtype=COMPUTED[entry.dtype])
        self._file.read(name, entry.begin, stored.view(-1).view(torch.uint8).numpy().data)
        if not bool(stored.isfinite().all()):
            raise ValueError(f"{self._file.path}: {name} has numbers that are infinite or none at all")
        self._unclaimed.discard(name)
        return stored.float()

    def _check(self, name: str, entry: Entry, shape: Shape) -> None:
        if entry.dtype not in COMPUTED:
            raise ValueError(f"{self._file.path}: {name} is stored as {entry.dtype}; supported: {', '.join(COMPUTED)}")
        if entry.shape != shape:
            raise ValueError(f"{self._file.path}: {name} is {list(entry.shape)}, this model and the adapter's rank ask "
                             f"for {list(shape)}")


@contextmanager
def opened_adapter(folder: Path) -> Iterator[AdapterTensors]:
    """Open the adapter in `folder` for reading. Raises ValueError."""
    config, path = read_adapter_config(folder), folder / FILE
    if not path.exists() and (folder / PICKLED).exists():
        raise ValueError(f"{folder} has its weights in {PICKLED}, which is a program as much as it is data; convert "
                         f"it to {FILE}")
    try:
        file = opened(path)
        with file as tensors:
            yield AdapterTensors(config, tensors)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
