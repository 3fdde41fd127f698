"""Reader of an adapter's tensors by module: LoRA matrices, or a full replacement of the base's weight.

    base_model.model.<module>.lora_A.weight            [rank, in]
    base_model.model.<module>.lora_B.weight            [out, rank]
    base_model.model.<module>.lora_embedding_A         [rank, vocabulary]
    base_model.model.<module>.lora_embedding_B         [width, rank]
    base_model.model.<module>.weight                   shape of the base's weight

The caller must read every tensor: `check_all_read` rejects an adapter with unread ones. Matrices are not split by shard
here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.config import AdapterConfig, load_adapter_config
from shard.checkpoint.reader import COMPUTE_DTYPES
from shard.checkpoint.safetensors_file import SafetensorsFile, Shape, TensorEntry, open_safetensors

WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
PEFT_PREFIX = "base_model.model."
# Prefixes of wrapper modules, which differ between the model that was trained and the one that was saved.
WRAPPER_PREFIXES = re.compile(r"^(?:(?:model|language_model|transformer|gpt_neox)\.)+")
LORA_A_SUFFIXES, LORA_B_SUFFIXES = (".lora_A.weight", ".lora_embedding_A"), (".lora_B.weight", ".lora_embedding_B")
# By suffix: the field of ModuleTensorNames. The first suffix that fits counts.
FIELDS_BY_SUFFIX = {**dict.fromkeys(LORA_A_SUFFIXES, "lora_a"), **dict.fromkeys(LORA_B_SUFFIXES, "lora_b"),
                    ".weight": "full_weight"}
# copy of the base's weight, which peft saves with an embedding's adapter; not used
BASE_LAYER_SUFFIX = ".base_layer.weight"


def strip_wrapper_prefixes(module: str) -> str:
    """Return the module's name without the prefixes of wrapper modules."""
    return WRAPPER_PREFIXES.sub("", module)


class LoraMatrices(NamedTuple):
    """The two LoRA matrices of one module, in float32."""

    lora_a: Tensor  # [rank, in]
    lora_b: Tensor  # [out, rank], scaled


class ModuleTensorNames(NamedTuple):
    """Names of a module's tensors in the file; empty where there is none."""

    lora_a: str = ""
    lora_b: str = ""
    full_weight: str = ""


class AdapterTensors:
    """Tensors of an open adapter file by module, each checked when it is read."""

    def __init__(self, config: AdapterConfig, file: SafetensorsFile) -> None:
        self.config = config
        self._file = file
        self._unread_names = set(file.entries)
        self.names_by_module: dict[str, ModuleTensorNames] = {}  # by the module's name without wrapper prefixes
        for name in file.entries:
            self._classify_name(name)

    @property
    def unrecognized_names(self) -> list[str]:
        """Names of tensors that do not have the form of a module's tensor."""
        return sorted(self._unread_names.difference(*self.names_by_module.values()))

    def header_entry(self, name: str) -> TensorEntry:
        return self._file.entries[name]

    def read_tensor(self, name: str) -> Tensor:
        """Read the tensor in its stored shape, as float32."""
        return self._read_as_float32(name, self.header_entry(name).shape)

    def read_lora_matrices(self, module: str, shape: tuple[int, int]) -> LoraMatrices | None:
        """Return the float32 matrices for a weight of `shape`, [out, in]; None if the adapter does not change it."""
        names = self.names_by_module.get(strip_wrapper_prefixes(module), ModuleTensorNames())
        if not (names.lora_a or names.lora_b):
            return None
        if not (names.lora_a and names.lora_b):
            raise ValueError(
                f"{self._file.path} has {names.lora_a or names.lora_b} without the other matrix of {module}")
        rank = self.config.rank_for_module(module)
        down, up = (self._read_as_float32(names.lora_a, (rank, shape[1])),
                    self._read_as_float32(names.lora_b, (shape[0], rank)))
        return LoraMatrices(down, up.mul_(self.config.scale_for_module(module)))

    def read_full_weight(self, module: str, shape: Shape) -> Tensor | None:
        """Return the float32 weight that replaces the base's, if there is one."""
        name = self.names_by_module.get(strip_wrapper_prefixes(module), ModuleTensorNames()).full_weight
        return self._read_as_float32(name, shape) if name else None

    def check_all_read(self) -> None:
        if self._unread_names:
            names = sorted(self._unread_names)
            raise ValueError(f"{self._file.path}: this model has no product for {', '.join(names[:3])}"
                             f"{' and others' if len(names) > 3 else ''}; is it an adapter of this model?")

    def _classify_name(self, name: str) -> None:
        module = name.removeprefix(PEFT_PREFIX)
        if module.endswith(BASE_LAYER_SUFFIX):
            self._unread_names.discard(name)
            return
        suffix = next(filter(module.endswith, FIELDS_BY_SUFFIX), None)
        if suffix is None:
            return
        module, field = strip_wrapper_prefixes(module.removesuffix(suffix)), FIELDS_BY_SUFFIX[suffix]
        names = self.names_by_module.get(module, ModuleTensorNames())
        if getattr(names, field):
            raise ValueError(f"{self._file.path} has both {getattr(names, field)} and {name} for the same product")
        self.names_by_module[module] = names._replace(**{field: name})

    def _read_as_float32(self, name: str, shape: Shape) -> Tensor:
        entry = self._file.entries[name]
        if entry.dtype not in COMPUTE_DTYPES:
            raise ValueError(
                f"{self._file.path}: {name} is stored as {entry.dtype}; supported: {', '.join(COMPUTE_DTYPES)}")
        if entry.shape != shape:
            raise ValueError(f"{self._file.path}: {name} is {list(entry.shape)}, this model and the adapter's rank ask "
                             f"for {list(shape)}")
        stored = torch.empty(shape, dtype=COMPUTE_DTYPES[entry.dtype])
        self._file.read_bytes_into(name, entry.begin, stored.view(-1).view(torch.uint8).numpy().data)
        if not bool(stored.isfinite().all()):
            raise ValueError(f"{self._file.path}: {name} has numbers that are infinite or none at all")
        self._unread_names.discard(name)
        return stored.float()


@contextmanager
def open_adapter(folder: Path) -> Iterator[AdapterTensors]:
    """Open the adapter in `folder` for reading. Raises ValueError."""
    config, path = load_adapter_config(folder), folder / WEIGHTS_FILE
    if not path.exists() and (folder / PICKLE_FILE).exists():
        raise ValueError(f"{folder} has its weights in {PICKLE_FILE}, which is a program as much as it is data; "
                         f"convert it to {WEIGHTS_FILE}")
    try:
        with open_safetensors(path) as tensors:
            yield AdapterTensors(config, tensors)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
