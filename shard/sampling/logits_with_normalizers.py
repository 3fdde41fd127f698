"""Logits of a step's rows, and what turns them into logprobs: the maximum and the sum of each row.

log_softmax is (logit - maximum) - log(sum of e^(logit - maximum)). So a logprob is computed where one is needed, and
with kernels the logprobs of a whole vocabulary are not written.
"""

import ctypes
from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
from torch import Tensor

from shard.native.library import NativeLibrary, load_library

IDS_PER_BLOCK = 128  # as BLOCK_IDS in normalizing.c and candidates.c


@dataclass(frozen=True, slots=True)
class LogitsWithNormalizers:
    """Logits of some rows, with what turns them into logprobs. Best means the highest logit, and the lowest id among
    equal ones."""

    logits: Tensor  # [rows, vocabulary]
    block_maxima: Tensor  # [rows, vocabulary // IDS_PER_BLOCK]
    best_tokens: Tensor  # [rows] int64
    maxima: Tensor  # [rows, 1]
    log_sums: Tensor  # [rows, 1]

    def compute_logprobs(self, logits: Tensor) -> Tensor:
        """Return the logprobs of some of these rows' logits [rows, any number]."""
        return (logits - self.maxima) - self.log_sums

    def compute_probabilities(self) -> Tensor:
        """Return the probabilities of whole rows."""
        # On a GPU the bits of softmax may depend on where in memory a row lies.
        return (self.logits.softmax(-1) if self.logits.device.type == "cpu"
                else self.compute_logprobs(self.logits).exp())

    def gather_logprobs(self, ids: Tensor) -> Tensor:
        """Return the logprob of each row's token in `ids` [rows]."""
        return self.compute_logprobs(self.logits.gather(-1, ids[:, None]))[:, 0]

    def select_rows(self, rows: Tensor | slice) -> "LogitsWithNormalizers":
        return LogitsWithNormalizers(self.logits[rows], self.block_maxima[rows], self.best_tokens[rows],
                                     self.maxima[rows], self.log_sums[rows])

    def copy_to_host(self) -> "LogitsWithNormalizers":
        return LogitsWithNormalizers(self.logits.cpu(), self.block_maxima.cpu(), self.best_tokens.cpu(),
                                     self.maxima.cpu(), self.log_sums.cpu())


def compute_normalizers(logits: Tensor, buffer: Tensor | None = None) -> LogitsWithNormalizers:
    """Return float32 logits [rows, vocabulary] with their normalizers. The logarithm of a row's sum is NaN if one of
    its logits is NaN or positive infinity, or if all are negative infinity. Torch writes to the buffer, if it is given,
    of the same shape."""
    library = load_cpu_sampling_kernels(logits)
    return (compute_normalizers_with_torch(logits, buffer) if library is None
            else compute_normalizers_with_kernels(library, logits))


def load_cpu_sampling_kernels(logits: Tensor) -> NativeLibrary | None:
    return load_library() if logits.device.type == "cpu" else None


# ---------------------------------------------------------------------------------------------------------------------
# With torch


def compute_normalizers_with_torch(logits: Tensor, buffer: Tensor | None = None) -> LogitsWithNormalizers:
    num_blocks = logits.shape[-1] // IDS_PER_BLOCK
    block_maxima = logits[:, :num_blocks * IDS_PER_BLOCK].view(len(logits), num_blocks, IDS_PER_BLOCK).amax(-1)
    if num_blocks:
        ids = list_ids_in_blocks(block_maxima.argmax(-1, keepdim=True), logits.shape[-1])
        best_tokens = ids.gather(-1, logits.gather(-1, ids).argmax(-1, keepdim=True))
    else:
        best_tokens = logits.argmax(-1, keepdim=True)
    # Of the best token, whose logit is the maximum, this is 0 - log(sum).
    log_sums = -torch.log_softmax(logits, -1, out=buffer).gather(-1, best_tokens)
    return LogitsWithNormalizers(logits, block_maxima, best_tokens[:, 0], logits.gather(-1, best_tokens), log_sums)


def list_ids_in_blocks(blocks: Tensor, vocabulary_size: int) -> Tensor:
    """Return all ids in these blocks [rows, blocks], and the ids at the end that fill no block."""
    ids = (blocks[..., None] * IDS_PER_BLOCK + torch.arange(IDS_PER_BLOCK, device=blocks.device)).flatten(1)
    if vocabulary_size % IDS_PER_BLOCK == 0:
        return ids
    rest = torch.arange(vocabulary_size - vocabulary_size % IDS_PER_BLOCK, vocabulary_size, device=blocks.device)
    return torch.cat([ids, rest.expand(len(blocks), -1)], -1)


# ---------------------------------------------------------------------------------------------------------------------
# With kernels of shard/native


class NormalizingArguments(ctypes.Structure):
    """`Normalizing` in normalizing.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("logits", "block_maxima", "maxima", "sums", "best_ids")),
        *((name, ctypes.c_int64) for name in ("rows", "vocabulary", "stride"))]


def compute_normalizers_with_kernels(library: NativeLibrary, logits: Tensor) -> LogitsWithNormalizers:
    num_rows, vocabulary_size = logits.shape
    check_layout(logits)
    block_maxima = torch.empty(num_rows, vocabulary_size // IDS_PER_BLOCK)
    maxima, sums = torch.empty(num_rows, 1), torch.empty(num_rows, dtype=torch.float64)
    best_tokens = torch.empty(num_rows, dtype=torch.int64)
    library.compute_softmax_normalizers(NormalizingArguments(
        logits.data_ptr(), block_maxima.data_ptr(), maxima.data_ptr(), sums.data_ptr(), best_tokens.data_ptr(),
        num_rows, vocabulary_size, logits.stride(0)), num_results=logits.numel())
    # One by one: the bits of torch's logarithm depend on the place in a vector.
    log_sums = torch.tensor([log(total) for total in sums.tolist()])[:, None]
    return LogitsWithNormalizers(logits, block_maxima, best_tokens, maxima, log_sums)


class SelectionArguments(ctypes.Structure):
    """`Selection` in candidates.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("logits", "block_maxima", "ids", "found_logits", "buffers")),
        *((name, ctypes.c_int64) for name in ("rows", "vocabulary", "stride", "count"))]


def select_with_kernels(library: NativeLibrary, normalized: LogitsWithNormalizers, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best tokens of each row and their logits, best first."""
    logits = normalized.logits
    check_layout(logits)
    num_rows, vocabulary_size = logits.shape
    ids, found_logits = torch.empty(num_rows, count, dtype=torch.int64), torch.empty(num_rows, count)
    buffers = torch.empty(num_rows, 2, 2 * count + IDS_PER_BLOCK, dtype=torch.int64)
    library.select_candidates(SelectionArguments(
        logits.data_ptr(), normalized.block_maxima.data_ptr(), ids.data_ptr(), found_logits.data_ptr(),
        buffers.data_ptr(), num_rows, vocabulary_size, logits.stride(0), count), num_results=logits.numel())
    return ids, found_logits


def check_layout(logits: Tensor) -> None:
    if logits.dtype != torch.float32 or logits.stride(1) != 1:  # the kernel cannot tell
        raise ValueError(f"needs rows of float32 logits side by side, got {logits.dtype}, {logits.stride()}")
