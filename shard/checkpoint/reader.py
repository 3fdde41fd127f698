"""Reader of a model's safetensors files, as one rank uses it: every slice is read directly into one new tensor.

Only the rows that a slice needs are read. Columns, and numbers whose dtype or device changes, pass through a small
staging buffer, so there are no two copies of them; only transposed tensors are copied as a whole. The system's page
cache keeps the files for other ranks and later starts.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.targets import Sites
from shard.checkpoint.index import list_files, some
from shard.checkpoint.safetensors_file import TensorFile, opened
from shard.checkpoint.safetensors_header import Entry, Shape
from shard.ops.int8_linear import Buffers
from shard.quantization.format import Coded, Format, Slice
from shard.quantization.quantized import Quantized

COMPUTED = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
PACKED = {  # in quantised checkpoints
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
DTYPES = COMPUTED | PACKED
MATRIX = 2  # dimensions
MOST_SPARE = 16  # `brief` memory is reused if it has at most so many times the size that is needed
# Small enough to stay in the processor's cache, and for torch to copy without waking threads, which takes longer.
STAGE_BYTES = {"cpu": 2**16, "cuda": 2**24}

log = logging.getLogger(__name__)


class Rows(NamedTuple):
    """Rows of a tensor; rows beyond its last are zeros."""

    name: str
    shape: Shape
    rows: range
    turned: bool = False  # whether the file has the tensor transposed, [in, out]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of an opened file."""

    name: str
    file: TensorFile
    entry: Entry

    @property
    def dtype(self) -> torch.dtype:
        if self.entry.dtype not in DTYPES:
            raise ValueError(f"{self.file.path}: {self.name} is stored as {self.entry.dtype}; "
                             f"supported: {', '.join(DTYPES)}")
        return DTYPES[self.entry.dtype]

    @property
    def num_bytes(self) -> int:
        return self.entry.end - self.entry.begin

    def read(self, first: int, numbers: Tensor) -> None:
        """Read numbers, from the one at index `first` on, in the stored dtype."""
        place = self.entry.begin + first * numbers.itemsize
        self.file.read(self.name, place, numbers.view(torch.uint8).numpy().data)


class Weights:
    """Tensors of a model: `with Weights(folder, torch.float32, torch.device("cpu")) as weights: ...`

    Every `shape` argument is the tensor's whole shape, as the caller expects it. Packed tensors (integers and eight-bit
    floats) have no meaning by themselves and are read in no other dtype than their own.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, form: Format | None = None,
                 quantize: str = "", *, sites: Sites | None = None,
                 on_read: Callable[[int, int], object] = lambda _done, _total: None) -> None:
        """Open the files. Tensors are read as `dtype` unless requested otherwise, on `device`. `form` is how the
        checkpoint is quantised; `quantize` is the format in which weights are kept if it is not. `sites` collects, for
        adapters, the linears that are made of the weights. `on_read` is called with the bytes of the tensors requested
        so far, and of all."""
        self.dtype, self.device = dtype, device
        self.sites = sites or Sites()
        self.buffers = Buffers(dtype, device)  # shared by linears whose weights are kept as codes
        self._quantized = Quantized(form, quantize)
        self._folder = folder
        self._stored: dict[str, Stored] = {}
        self._claimed: set[str] = set()
        self._on_read = on_read
        self._num_read = 0
        self._brief = torch.empty(0)
        self._stage = torch.empty(STAGE_BYTES[device.type], dtype=torch.uint8)
        listing = list_files(folder)
        with ExitStack() as files:
            for name in listing.files:
                self._add(files.enter_context(opened(folder / name)))
            listing.check({name: stored.file.path.name for name, stored in self._stored.items()})
            self._open = files.pop_all()
        self._num_read, self._num_bytes = 0, sum(stored.num_bytes for stored in self._stored.values())
        if beside := listing.beside():
            log.info("%s also holds %s, which is not read", folder, some(beside))

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._open.close()

    def holds(self, name: str) -> bool:
        """Whether the files have the tensor, or the tensors of its quantised form."""
        return name in self._stored or self._quantized.stands_for(self, name)

    def stored(self, name: str) -> tuple[torch.dtype, Shape] | None:
        """Return dtype and shape in the file, or None if there is no such tensor."""
        found = self._stored.get(name)
        return None if found is None else (found.dtype, found.entry.shape)

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the stored dtype of a tensor, or `dtype` if the tensor is quantised."""
        return self.dtype if self._quantized.stands_for(self, name) else self._find(name).dtype

    def shape_of(self, name: str) -> Shape:
        return self._find(name).entry.shape

    def whole(self, name: str, shape: Shape, dtype: torch.dtype | None = None) -> Tensor:
        read = self._new(shape, dtype or self.dtype, brief=False)
        if not (shape and self._expand(name, shape, range(shape[0]), None, read)):
            self._fill(self._find(name, shape), 0, read)
        return read

    def rows(self, name: str, shape: Shape, rows: range, dtype: torch.dtype | None = None, *,
             brief: bool = False) -> Tensor:
        return self.stack([Rows(name, shape, rows)], dtype, brief=brief)

    def stack(self, parts: Sequence[Rows], dtype: torch.dtype | None = None, *, brief: bool = False) -> Tensor:
        """Return rows of several tensors, one below the other. A `brief` tensor is valid until the next brief one is
        requested: its memory is reused, since allocating and clearing so much takes longer than filling it."""
        counts = [len(part.rows) for part in parts]
        stacked = self._new((sum(counts), *parts[0].shape[1:]), dtype or self.dtype, brief=brief)
        for target, (name, shape, rows, turned) in zip(torch.split(stacked, counts), parts, strict=True):
            if not turned and self._expand(name, shape, rows, None, target):
                continue
            held = range(rows.start, max(rows.start, min(rows.stop, shape[0])))
            if turned:
                across = torch.empty((shape[1], len(held)), dtype=stacked.dtype, device=self.device)
                target[:len(held)].copy_(self._columns(self._find(name, shape[::-1]), held, across).mT)
            else:
                self._fill(self._find(name, shape), rows.start * prod(shape[1:]), target[:len(held)])
            target[len(held):].zero_()
        return stacked

    def columns(self, name: str, shape: Shape, columns: range, dtype: torch.dtype | None = None, *,
                brief: bool = False, turned: bool = False) -> Tensor:
        """Return columns of a tensor; `turned` if the file has it transposed, with these as rows."""
        if turned:
            return self.rows(name, shape[::-1], columns, dtype).mT.contiguous()
        read = self._new((shape[0], len(columns)), dtype or self.dtype, brief=brief)
        if self._expand(name, shape, range(shape[0]), columns, read):
            return read
        return self._columns(self._find(name, shape), columns, read)

    def codes(self, parts: Sequence[Slice]) -> list[Coded] | None:
        """Return the codes of all parts for one linear, or None if it is not to be kept as codes."""
        return self._quantized.codes(self, parts)

    @property
    def quantization(self) -> str:
        """Summary in one line of what was quantised and how it is kept, or an empty string."""
        return self._quantized.note(self.dtype)

    def ignore(self, name: str) -> None:
        """Allow a tensor that may exist and is not used."""
        self._claimed.add(name)

    def ignore_all(self, prefix: str) -> None:
        """Allow all unused tensors whose names begin with the prefix."""
        self._claimed.update(name for name in self._stored if name.startswith(prefix))

    def put_beneath(self, prefix: str) -> None:
        """Prefix all tensor names from now on: checkpoints saved without a head lack the prefix."""
        self._stored = {f"{prefix}{name}": stored for name, stored in self._stored.items()}

    def unclaimed(self) -> list[str]:
        """Return the names of tensors that were not requested, but for those that may stay unread."""
        left = sorted(self._stored.keys() - self._claimed)
        return [name for name in left if not self._quantized.is_spare(self, name)]

    def _expand(self, name: str, shape: Shape, rows: range, columns: range | None, target: Tensor) -> bool:
        """Fill `target` if the tensor is stored in quantised form; return whether `target` was filled."""
        stored = self._stored.get(name)
        if len(shape) != MATRIX or (stored is not None and stored.dtype == target.dtype):
            return False
        held = range(rows.start, max(rows.start, min(rows.stop, shape[0])))
        wanted = Slice(name, (shape[0], shape[1]), held, range(shape[1]) if columns is None else columns)
        if not self._quantized.fill(self, wanted, target[:len(held)]):
            return False
        target[len(held):].zero_()
        return True

    def _add(self, file: TensorFile) -> None:
        for name, entry in file.entries.items():
            if name in self._stored:
                raise ValueError(f"{file.path} holds {name}, and so does {self._stored[name].file.path.name}")
            self._stored[name] = Stored(name, file, entry)

    def _new(self, shape: Shape, dtype: torch.dtype, *, brief: bool) -> Tensor:
        if not brief:
            return torch.empty(shape, dtype=dtype, device=self.device)
        size, kept = prod(shape), self._brief
        if kept.dtype != dtype or not size <= kept.numel() <= MOST_SPARE * size:
            del kept
            self._brief = torch.empty(0)  # free the old one before allocating the new one
            self._brief = torch.empty(size, dtype=dtype, device=self.device)
        return self._brief[:size].view(shape)

    def _find(self, name: str, shape: Shape | None = None) -> Stored:
        if name not in self._stored:
            raise ValueError(f"{self._folder} lacks {name}, which its config.json asks for; is the download complete?")
        stored = self._stored[name]
        if shape not in {None, stored.entry.shape}:
            raise ValueError(f"{stored.file.path}: {name} is {list(stored.entry.shape)}, config.json asks for "
                             f"{list(shape or ())}")
        self._claim(name, stored)
        return stored

    def _claim(self, name: str, stored: Stored) -> None:
        if name not in self._claimed:
            self._claimed.add(name)
            self._num_read += stored.num_bytes
            self._on_read(self._num_read, self._num_bytes)

    def _columns(self, stored: Stored, columns: range, target: Tensor) -> Tensor:
        """Fill the target and return it."""
        if len(columns) == stored.entry.shape[1]:
            self._fill(stored, 0, target)
        elif len(columns):
            self._fill_columns(stored, columns, target)
        return target

    def _fill(self, stored: Stored, first: int, target: Tensor) -> None:
        """Fill the target with numbers, from the one at index `first` on."""
        check_conversion(stored, target.dtype)
        flat = target.view(-1)
        if stored.dtype == flat.dtype and flat.device.type == "cpu":
            stored.read(first, flat)
            return
        stage = self._stage.view(stored.dtype)
        for piece in torch.split(flat, len(stage)):
            staged = stage[:len(piece)]
            stored.read(first, staged)
            piece.copy_(staged)
            first += len(piece)

    def _fill_columns(self, stored: Stored, columns: range, target: Tensor) -> None:
        """Fill the target with columns of a matrix. As many whole rows are read at once as the stage holds: a call for
        each row would take longer."""
        check_conversion(stored, target.dtype)
        width, stage = stored.entry.shape[1], self._stage.view(stored.dtype)
        num_rows = len(stage) // width
        if not num_rows:
            for row, part in enumerate(target):
                self._fill(stored, row * width + columns.start, part)
            return
        for number, part in enumerate(torch.split(target, num_rows)):
            staged = stage[:len(part) * width]
            stored.read(number * num_rows * width, staged)
            part.copy_(staged.view(-1, width)[:, columns.start:columns.stop])


def check_conversion(stored: Stored, wanted: torch.dtype) -> None:
    if wanted != stored.dtype and stored.entry.dtype not in COMPUTED:
        raise ValueError(f"{stored.file.path}: {stored.name} is stored as {stored.entry.dtype}, which is no number to "
                         f"compute with by itself; supported: {', '.join(COMPUTED)}")


def weight_bytes(folder: Path) -> int:
    """Return the approximate bytes of all tensors: headers count as well."""
    return sum((folder / name).stat().st_size for name in list_files(folder).files)
