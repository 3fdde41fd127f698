"""One rank's reader of a model's safetensors files: every slice straight into one new tensor.

Only what a slice needs is read, and the file's pages leave this process's memory as soon as they were copied; the
system keeps them for the other ranks and the next start. Knows nothing of models, nor of which rank reads what.
"""

import json
import mmap
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth")
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
MOST_SPARE = 16  # times the size that is needed, up to which memory is kept to be used again
HEADER_LENGTH = struct.Struct("<Q")

Shape = tuple[int, ...]


class Rows(NamedTuple):
    """Rows of a tensor. Those beyond its last are zeros."""

    name: str
    shape: Shape
    rows: range


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it lies in a file."""

    path: Path
    memory: mmap.mmap
    dtype: torch.dtype
    shape: Shape
    start: int
    end: int

    def view(self) -> Tensor:
        numbers = torch.frombuffer(self.memory, dtype=self.dtype, count=prod(self.shape), offset=self.start)
        return numbers.view(self.shape)

    def drop_pages(self) -> None:
        begin = self.start - self.start % mmap.PAGESIZE
        self.memory.madvise(mmap.MADV_DONTNEED, begin, self.end - begin)


class Weights:
    """`with Weights(folder, torch.float32, torch.device("cpu")) as weights: ...`

    Every shape that is asked for is the tensor's whole shape, as the caller expects it.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Tensors come as `dtype` unless asked otherwise, on `device`."""
        self.dtype, self.device = dtype, device
        self._folder = folder
        self._stored: dict[str, Stored] = {}
        self._claimed: set[str] = set()
        self._brief = torch.empty(0)
        with ExitStack() as opened:
            for path in weight_files(folder):
                self._stored |= read_header(path, opened.enter_context(mapped(path)))
            self._open = opened.pop_all()

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._open.close()

    def dtype_of(self, name: str) -> torch.dtype:
        """As it is stored."""
        return self._find(name).dtype

    def whole(self, name: str, shape: Shape) -> Tensor:
        return self.rows(name, shape, range(shape[0]))

    def rows(self, name: str, shape: Shape, rows: range, dtype: torch.dtype | None = None, *,
             brief: bool = False) -> Tensor:
        return self.stack([Rows(name, shape, rows)], dtype, brief=brief)

    def stack(self, parts: Sequence[Rows], dtype: torch.dtype | None = None, *, brief: bool = False) -> Tensor:
        """Rows of several tensors, one below the other. What is `brief` holds until the next brief one is asked for:
        its memory is used again, since the system takes longer to find and clear so much than we to fill it."""
        counts = [len(part.rows) for part in parts]
        stacked = self._new((sum(counts), *parts[0].shape[1:]), dtype or self.dtype, brief=brief)
        for target, (name, shape, rows) in zip(torch.split(stacked, counts), parts, strict=True):
            stored = self._find(name, shape)
            source = stored.view()[rows.start:rows.stop]
            target[:len(source)].copy_(source)
            target[len(source):].zero_()
            stored.drop_pages()
        return stacked

    def columns(self, name: str, shape: Shape, columns: range, *, brief: bool = False) -> Tensor:
        stored = self._find(name, shape)
        copied = self._new((shape[0], len(columns)), self.dtype, brief=brief)
        copied.copy_(stored.view()[:, columns.start:columns.stop])
        stored.drop_pages()
        return copied

    def ignore(self, name: str) -> None:
        """It may be there, and is of no use."""
        self._claimed.add(name)

    def unclaimed(self) -> list[str]:
        """What nobody asked for."""
        return sorted(self._stored.keys() - self._claimed)

    def _new(self, shape: Shape, dtype: torch.dtype, *, brief: bool) -> Tensor:
        if not brief:
            return torch.empty(shape, dtype=dtype, device=self.device)
        size, kept = prod(shape), self._brief
        if kept.dtype != dtype or not size <= kept.numel() <= MOST_SPARE * size:
            del kept
            self._brief = torch.empty(0)  # the old one goes before the new one comes
            self._brief = torch.empty(size, dtype=dtype, device=self.device)
        return self._brief[:size].view(shape)

    def _find(self, name: str, shape: Shape | None = None) -> Stored:
        if name not in self._stored:
            raise ValueError(f"{self._folder} lacks {name}, which its config.json asks for; is the download complete?")
        stored = self._stored[name]
        if shape not in {None, stored.shape}:
            raise ValueError(f"{stored.path}: {name} is {list(stored.shape)}, config.json asks for {list(shape or ())}")
        self._claimed.add(name)
        return stored


def weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    names = set(read_json(index.read_bytes(), index)["weight_map"].values()) if index.is_file() else {SINGLE}
    missing = [name for name in sorted(names) if not (folder / name).is_file()]
    if not missing:
        return [folder / name for name in sorted(names)]
    if pickled := [path.name for pattern in PICKLED for path in folder.glob(pattern)]:
        raise ValueError(f"{folder} holds its weights as {', '.join(sorted(pickled))}, which can run code when it is "
                         f"read; supported: safetensors")
    raise ValueError(f"{folder} lacks {', '.join(missing)}; is the download complete?")


def mapped(path: Path) -> mmap.mmap:
    """Private and writable, as torch wants it; nobody writes."""
    if path.stat().st_size < HEADER_LENGTH.size:
        raise ValueError(f"{path} has no header; is the download complete?")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def read_header(path: Path, memory: mmap.mmap) -> dict[str, Stored]:
    """The length of a JSON object, the object, and from there on the numbers."""
    (length,) = HEADER_LENGTH.unpack(memory[:HEADER_LENGTH.size])
    begin = HEADER_LENGTH.size + length
    header = read_json(memory[HEADER_LENGTH.size:begin], path)
    header.pop("__metadata__", None)
    return {name: read_entry(path, memory, begin, name, entry) for name, entry in header.items()}


def read_entry(path: Path, memory: mmap.mmap, begin: int, name: str, entry: dict[str, Any]) -> Stored:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{path}: {name} is stored as {entry['dtype']}; supported: {', '.join(DTYPES)}")
    start, end = (begin + offset for offset in entry["data_offsets"])
    if end > len(memory):
        raise ValueError(f"{path} ends {end - len(memory)} bytes before {name} does; is the download complete?")
    return Stored(path, memory, DTYPES[entry["dtype"]], tuple(entry["shape"]), start, end)


def read_json(text: bytes, path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; is the download complete?") from error
    return read
