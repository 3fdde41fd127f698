"""The tensors of one adapter, found by the module that they belong to: matrices of a product, or what stands for it.

    base_model.model.<module>.lora_A.weight            [rank, in]
    base_model.model.<module>.lora_B.weight            [out, rank]
    base_model.model.<module>.lora_embedding_A         [rank, vocabulary]
    base_model.model.<module>.lora_embedding_B         [width, rank]
    base_model.model.<module>.weight                   as the base's own

Every tensor must be asked for. Knows nothing of ranks, nor of how a product is made.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.described import AdapterConfig, read_adapter_config
from shard.header import Entry, Shape
from shard.tensor_file import TensorFile, opened
from shard.weights import COMPUTED

FILE = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
PREFIX = "base_model.model."
# Models are wrapped in different ways when they are trained and when they are saved.
WRAPPINGS = re.compile(r"^(?:(?:model|language_model|transformer|gpt_neox)\.)+")
DOWN, UP = (".lora_A.weight", ".lora_embedding_A"), (".lora_B.weight", ".lora_embedding_B")
BESIDE = ".base_layer.weight"  # the base's own, which peft writes beside an adapter of an embedding
WHOLE = ".weight"


def plain(module: str) -> str:
    """The name without what the model is wrapped in."""
    return WRAPPINGS.sub("", module)


class Matrices(NamedTuple):
    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank], scaled


class Parts(NamedTuple):
    """Names of tensors."""

    down: str = ""
    up: str = ""
    whole: str = ""


class AdapterTensors:
    def __init__(self, config: AdapterConfig, file: TensorFile) -> None:
        self.config = config
        self._file = file
        self._unclaimed = set(file.entries)
        self._modules: dict[str, Parts] = {}
        for name in file.entries:
            self._note(name)

    @property
    def modules(self) -> Mapping[str, Parts]:
        """What there is of each, by its plain name."""
        return self._modules

    @property
    def strangers(self) -> list[str]:
        """Names of tensors that are nothing of a module."""
        return sorted(self._unclaimed.difference(*self._modules.values()))

    def entry(self, name: str) -> Entry:
        return self._file.entries[name]

    def read(self, name: str) -> Tensor:
        """As it is, in float32."""
        return self._read(name, self.entry(name).shape)

    def matrices(self, module: str, shape: tuple[int, int]) -> Matrices | None:
        """Of a product of this shape, `[out, in]`, in float32; None if the adapter leaves it alone."""
        parts = self._modules.get(plain(module), Parts())
        if not (parts.down or parts.up):
            return None
        if not (parts.down and parts.up):
            raise ValueError(f"{self._file.path} has {parts.down or parts.up} without the other matrix of {module}")
        rank = self.config.rank_of(module)
        down, up = self._read(parts.down, (rank, shape[1])), self._read(parts.up, (shape[0], rank))
        return Matrices(down, up.mul_(self.config.scale_of(module)))

    def whole(self, module: str, shape: Shape) -> Tensor | None:
        """What stands for the base's own weight, if something does, in float32."""
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
    """Raises ValueError."""
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
