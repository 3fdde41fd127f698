"""Reader of a model's safetensors files, as one rank uses it: every slice is read directly into one new tensor.

Only the rows that a slice needs are read. Columns, and numbers whose dtype or device changes, pass through a small
staging buffer, so there are no two copies of them; only transposed tensors are copied as a whole. The system's page
cache keeps the files for other ranks and later starts.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor

from shard.checkpoint.index import join_names_with_cutoff, list_checkpoint_files
from shard.checkpoint.safetensors_file import SafetensorsFile, Shape, TensorEntry, open_safetensors
from shard.lora.targets import LoraTargetLayers
from shard.ops.int8_linear import DequantBuffers
from shard.quantization.quantization_format import MatrixSlice, QuantizationFormat, QuantizedSlice
from shard.quantization.quantized_weight_reader import CanKeepInt4, QuantizedWeightReader

COMPUTE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
PACKED_DTYPES = {  # in quantized checkpoints
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
STORED_DTYPES = COMPUTE_DTYPES | PACKED_DTYPES
MATRIX_DIMENSIONS = 2  # dimensions
EMBEDDING_NAME_PATTERN = re.compile(r"embed|\b(wte|wpe)\b")  # in names of tensors
MAX_SCRATCH_RATIO = 16  # `scratch` memory is reused if it has at most so many times the size that is needed
# Small enough to stay in the processor's cache, and for torch to copy without waking threads, which takes longer.
STAGING_BYTES = {"cpu": 2**16, "cuda": 2**24}

logger = logging.getLogger(__name__)


class RowSelection(NamedTuple):
    """Rows of a tensor; rows beyond its last are zeros."""

    name: str
    shape: Shape
    rows: range
    transposed: bool = False  # whether the file has the tensor transposed, [in, out]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of an opened file."""

    name: str
    file: SafetensorsFile
    entry: TensorEntry

    @property
    def dtype(self) -> torch.dtype:
        if self.entry.dtype not in STORED_DTYPES:
            raise ValueError(f"{self.file.path}: {self.name} is stored as {self.entry.dtype}; "
                             f"supported: {', '.join(STORED_DTYPES)}")
        return STORED_DTYPES[self.entry.dtype]

    @property
    def num_bytes(self) -> int:
        return self.entry.end - self.entry.begin

    def read_values(self, first_index: int, target: Tensor) -> None:
        """Read numbers, from the one at index `first_index` on, in the stored dtype."""
        offset = self.entry.begin + first_index * target.itemsize
        self.file.read_bytes_into(self.name, offset, target.view(torch.uint8).numpy().data)


class CheckpointReader:
    """Tensors of a model: `with CheckpointReader(folder, torch.float32, torch.device("cpu")) as weights: ...`

    Every `shape` argument is the tensor's whole shape, as the caller expects it. Packed tensors (integers and eight-bit
    floats) have no meaning by themselves and are read in no other dtype than their own.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device,
                 quantization_format: QuantizationFormat | None = None, quantize_on_load: str = "", *,
                 lora_targets: LoraTargetLayers | None = None,
                 on_progress: Callable[[int, int], object] = lambda _done, _total: None) -> None:
        """Open the files. Tensors are read as `dtype` unless requested otherwise, on `device`. `quantization_format` is
        how the checkpoint is quantized; `quantize_on_load` is the format in which weights are kept if it is not.
        `lora_targets` collects, for adapters, the linears that are made of the weights. `on_progress` is called with
        the bytes of the tensors requested so far, and of all."""
        self.dtype, self.device = dtype, device
        self.lora_targets = lora_targets or LoraTargetLayers()
        self.dequant_buffers = DequantBuffers(dtype, device)  # shared by linears whose weights are kept as codes
        self._quantized_weights = QuantizedWeightReader(quantization_format, quantize_on_load)
        self._folder = folder
        self._stored_tensors: dict[str, StoredTensor] = {}
        self._claimed_names: set[str] = set()
        self._on_progress = on_progress
        self._scratch = torch.empty(0)
        self._staging_buffer = torch.empty(STAGING_BYTES[device.type], dtype=torch.uint8)
        checkpoint_files = list_checkpoint_files(folder)
        with ExitStack() as files:
            for name in checkpoint_files.files:
                file = files.enter_context(open_safetensors(folder / name))
                if repeated := file.entries.keys() & self._stored_tensors.keys():
                    raise ValueError(f"{file.path} holds {min(repeated)}, and so does "
                                     f"{self._stored_tensors[min(repeated)].file.path.name}")
                self._stored_tensors |= {tensor: StoredTensor(tensor, file, entry)
                                         for tensor, entry in file.entries.items()}
            checkpoint_files.check_index({name: stored.file.path.name for name, stored in self._stored_tensors.items()})
            self._open_files = files.pop_all()
        self._num_bytes_read, self._num_bytes = 0, sum(stored.num_bytes for stored in self._stored_tensors.values())
        if unread_files := checkpoint_files.list_unread_files():
            logger.info("%s also holds %s, which is not read", folder, join_names_with_cutoff(unread_files))

    def __enter__(self) -> "CheckpointReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._open_files.close()

    def has_tensor(self, name: str) -> bool:
        """Whether the files have the tensor, or the tensors of its quantized form."""
        return name in self._stored_tensors or self._quantized_weights.is_quantized(self, name)

    def find_dtype_and_shape(self, name: str) -> tuple[torch.dtype, Shape] | None:
        """Return dtype and shape in the file, or None if there is no such tensor."""
        stored = self._stored_tensors.get(name)
        return None if stored is None else (stored.dtype, stored.entry.shape)

    def stored_dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of a tensor, or `dtype` if the tensor is quantized."""
        return self.dtype if self._quantized_weights.is_quantized(self, name) else self._find_and_claim(name).dtype

    def find_common_dtype(self, names: Iterable[str]) -> torch.dtype | None:
        """Return the dtype in which all of these tensors are stored; None if they differ, or one is quantized or
        missing."""
        dtypes = {None if name not in self._stored_tensors or self._quantized_weights.is_quantized(self, name)
                  else self._stored_tensors[name].dtype for name in names}
        return dtypes.pop() if len(dtypes) == 1 else None

    def stored_shape(self, name: str) -> Shape:
        return self._find_and_claim(name).entry.shape

    def read_tensor(self, name: str, shape: Shape, dtype: torch.dtype | None = None) -> Tensor:
        read = self._allocate(shape, dtype or self.dtype, scratch=False)
        if not (shape and self._try_dequantize_into(name, shape, range(shape[0]), None, read)):
            self._read_values_into(self._find_and_claim(name, shape), 0, read)
        return read

    def read_rows(self, name: str, shape: Shape, rows: range, dtype: torch.dtype | None = None, *,
                  scratch: bool = False) -> Tensor:
        return self.read_stacked_rows([RowSelection(name, shape, rows)], dtype, scratch=scratch)

    def read_stacked_rows(self, tensor_rows: Sequence[RowSelection], dtype: torch.dtype | None = None, *,
                          scratch: bool = False) -> Tensor:
        """Return rows of several tensors, one below the other. A `scratch` tensor is valid until the next such one is
        requested: its memory is reused, since allocating and clearing so much takes longer than filling it."""
        counts = [len(part.rows) for part in tensor_rows]
        stacked = self._allocate((sum(counts), *tensor_rows[0].shape[1:]), dtype or self.dtype, scratch=scratch)
        for target, (name, shape, rows, turned) in zip(torch.split(stacked, counts), tensor_rows, strict=True):
            if not turned and self._try_dequantize_into(name, shape, rows, None, target):
                continue
            existing_rows = range(rows.start, max(rows.start, min(rows.stop, shape[0])))
            if turned:
                transposed_block = torch.empty((shape[1], len(existing_rows)), dtype=stacked.dtype, device=self.device)
                target[:len(existing_rows)].copy_(self._read_columns_into(self._find_and_claim(name, shape[::-1]),
                                                                          existing_rows, transposed_block).mT)
            else:
                self._read_values_into(self._find_and_claim(name, shape), rows.start * prod(shape[1:]),
                                       target[:len(existing_rows)])
            target[len(existing_rows):].zero_()
        return stacked

    def read_columns(self, name: str, shape: Shape, columns: range, dtype: torch.dtype | None = None, *,
                     scratch: bool = False, transposed: bool = False) -> Tensor:
        """Return columns of a tensor; `transposed` if the file has it transposed, with these as rows."""
        if transposed:
            return self.read_rows(name, shape[::-1], columns, dtype).mT.contiguous()
        read = self._allocate((shape[0], len(columns)), dtype or self.dtype, scratch=scratch)
        if self._try_dequantize_into(name, shape, range(shape[0]), columns, read):
            return read
        return self._read_columns_into(self._find_and_claim(name, shape), columns, read)

    def read_quantized_slices(self, matrix_slices: Sequence[MatrixSlice],
                              can_keep_int4: CanKeepInt4 | None = None) -> list[QuantizedSlice] | None:
        """Return the codes of all parts for one linear, or None if it is not to be kept as codes. `can_keep_int4` is
        that of QuantizedWeightReader."""
        return self._quantized_weights.read_quantized_slices(self, matrix_slices, can_keep_int4)

    def quantize_head_to_int8(self, matrix_slice: MatrixSlice) -> QuantizedSlice | None:
        """Return the codes of the head, or None if weights are not quantized while they are loaded."""
        return self._quantized_weights.quantize_head_to_int8(self, matrix_slice)

    @property
    def quantization_summary(self) -> str:
        """Summary in one line of what was quantized and how it is kept, or an empty string."""
        return self._quantized_weights.describe(self.dtype)

    def ignore_tensor(self, name: str) -> None:
        """Allow a tensor that may exist and is not used."""
        self._claimed_names.add(name)

    def ignore_prefix(self, prefix: str) -> None:
        """Allow all unused tensors whose names begin with the prefix."""
        self._claimed_names.update(name for name in self._stored_tensors if name.startswith(prefix))

    def add_name_prefix(self, prefix: str, head: str) -> None:
        """Prefix all tensor names but the head's from now on: checkpoints saved without a head lack the prefix."""
        self._stored_tensors = {name if name.startswith(f"{head}.") else f"{prefix}{name}": stored
                                for name, stored in self._stored_tensors.items()}

    def list_unclaimed_names(self) -> list[str]:
        """Return the names of tensors that were not requested, but for those that may stay unread."""
        left = sorted(self._stored_tensors.keys() - self._claimed_names)
        return [name for name in left if not self._quantized_weights.may_skip_tensor(self, name)]

    def _try_dequantize_into(self, name: str, shape: Shape, rows: range, columns: range | None, target: Tensor) -> bool:
        """Fill `target` if the tensor is stored in quantized form; return whether `target` was filled."""
        stored = self._stored_tensors.get(name)
        if len(shape) != MATRIX_DIMENSIONS or (stored is not None and stored.dtype == target.dtype):
            return False
        existing_rows = range(rows.start, max(rows.start, min(rows.stop, shape[0])))
        matrix_slice = MatrixSlice(name, (shape[0], shape[1]), existing_rows,
                                   range(shape[1]) if columns is None else columns)
        if not self._quantized_weights.try_dequantize_into(self, matrix_slice, target[:len(existing_rows)]):
            return False
        target[len(existing_rows):].zero_()
        return True

    def _allocate(self, shape: Shape, dtype: torch.dtype, *, scratch: bool) -> Tensor:
        if not scratch:
            return torch.empty(shape, dtype=dtype, device=self.device)
        size, old_scratch = prod(shape), self._scratch
        if old_scratch.dtype != dtype or not size <= old_scratch.numel() <= MAX_SCRATCH_RATIO * size:
            del old_scratch
            self._scratch = torch.empty(0)  # free the old one before allocating the new one
            self._scratch = torch.empty(size, dtype=dtype, device=self.device)
        return self._scratch[:size].view(shape)

    def _find_and_claim(self, name: str, shape: Shape | None = None) -> StoredTensor:
        if name not in self._stored_tensors:
            raise ValueError(f"{self._folder} lacks {name}, which its config.json asks for; is the download complete?")
        stored = self._stored_tensors[name]
        if shape not in {None, stored.entry.shape}:
            raise ValueError(f"{stored.file.path}: {name} is {list(stored.entry.shape)}, config.json asks for "
                             f"{list(shape or ())}")
        if name not in self._claimed_names:
            self._claimed_names.add(name)
            self._num_bytes_read += stored.num_bytes
            self._on_progress(self._num_bytes_read, self._num_bytes)
        return stored

    def _read_columns_into(self, stored: StoredTensor, columns: range, target: Tensor) -> Tensor:
        """Fill the target with columns of a matrix and return it. As many whole rows are read at once as the staging
        buffer holds: a call for each row would take longer."""
        width = stored.entry.shape[1]
        if len(columns) == width:
            self._read_values_into(stored, 0, target)
            return target
        if not columns:
            return target
        check_dtype_conversion(stored, target.dtype)
        stage = self._staging_buffer.view(stored.dtype)
        num_rows = len(stage) // width
        if not num_rows:
            for row, part in enumerate(target):
                self._read_values_into(stored, row * width + columns.start, part)
            return target
        for number, part in enumerate(torch.split(target, num_rows)):
            staged = stage[:len(part) * width]
            stored.read_values(number * num_rows * width, staged)
            part.copy_(staged.view(-1, width)[:, columns.start:columns.stop])
        return target

    def _read_values_into(self, stored: StoredTensor, first_index: int, target: Tensor) -> None:
        """Fill the target with numbers, from the one at index `first_index` on."""
        check_dtype_conversion(stored, target.dtype)
        flat = target.view(-1)
        if stored.dtype == flat.dtype and flat.device.type == "cpu":
            stored.read_values(first_index, flat)
            return
        stage = self._staging_buffer.view(stored.dtype)
        for piece in torch.split(flat, len(stage)):
            staged = stage[:len(piece)]
            stored.read_values(first_index, staged)
            piece.copy_(staged)
            first_index += len(piece)


def check_dtype_conversion(stored: StoredTensor, target_dtype: torch.dtype) -> None:
    if target_dtype != stored.dtype and stored.entry.dtype not in COMPUTE_DTYPES:
        raise ValueError(f"{stored.file.path}: {stored.name} is stored as {stored.entry.dtype}, which is no number to "
                         f"compute with by itself; supported: {', '.join(COMPUTE_DTYPES)}")


def count_weight_bytes(folder: Path) -> int:
    """Return the approximate bytes of all tensors: headers count as well."""
    return sum((folder / name).stat().st_size for name in list_checkpoint_files(folder).files)


def count_quantizable_weight_bytes(folder: Path) -> int:
    """Return the bytes of the matrices that --quantize makes smaller: all but the embeddings."""
    total = 0
    for name in list_checkpoint_files(folder).files:
        with open_safetensors(folder / name) as file:
            total += sum(StoredTensor(tensor, file, entry).num_bytes for tensor, entry in file.entries.items()
                         if len(entry.shape) == MATRIX_DIMENSIONS and not EMBEDDING_NAME_PATTERN.search(tensor))
    return total
