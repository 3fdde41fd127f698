"""The best candidates of every row of logits, found on the logits' device without sorting the vocabulary.

Best means the highest logit, and the lowest id among equal ones (docs/concepts/exactness.md, "Each row is sampled by
itself"). The largest logits are in the blocks of ids with the largest maxima, which are known already, so only a few
blocks are searched.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shard.sampling.logits_with_normalizers import (
    LogitsWithNormalizers,
    list_ids_in_blocks,
    load_cpu_sampling_kernels,
    select_with_kernels,
)

# Candidates per row, and how many a row gets that is not decided by those; the last one only bounds all others.
NUM_FEW_CANDIDATES, LARGER_CANDIDATE_COUNTS = 65, (1025, 4097)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of some rows, best first.

    Unless these are the whole vocabulary, candidates with the same logit as the last one are not sure: tokens that are
    left out may have that logit and lower ids. No token that is left out has a higher one.
    """

    token_ids: Tensor  # [rows, width] int64
    logits: Tensor  # [rows, width]
    logprobs: Tensor  # [rows, width], normalized over the whole vocabulary
    all_logits: LogitsWithNormalizers  # of these rows
    is_whole_vocabulary: bool

    def take_best(self, num_candidates: int) -> "Candidates":
        if num_candidates >= self.token_ids.shape[-1]:
            return self
        return Candidates(self.token_ids[:, :num_candidates], self.logits[:, :num_candidates],
                          self.logprobs[:, :num_candidates], self.all_logits, is_whole_vocabulary=False)

    def select_rows(self, rows: Tensor) -> "Candidates":
        return Candidates(self.token_ids[rows], self.logits[rows], self.logprobs[rows],
                          self.all_logits.select_rows(rows), self.is_whole_vocabulary)

    @property
    def has_certain_rank(self) -> Tensor:  # [rows, width] bool
        return (torch.ones_like(self.token_ids, dtype=torch.bool) if self.is_whole_vocabulary
                else self.logits > self.logits[:, -1:])

    def has_enough(self, counts: Tensor) -> Tensor:  # [rows] bool
        """Whether `counts` [rows] candidates are sure, or all tokens that can be chosen are among them."""
        return (self.has_certain_rank.sum(-1) >= counts) | (self.logits[:, -1] == -torch.inf) | self.is_whole_vocabulary


def find_candidates(normalized: LogitsWithNormalizers, num_candidates: int) -> Candidates:
    """Return `num_candidates` candidates per row, or the whole vocabulary if that is smaller."""
    vocabulary_size = normalized.logits.shape[-1]
    num_candidates = min(num_candidates, vocabulary_size)
    library = load_cpu_sampling_kernels(normalized.logits)
    if library is None:
        ids = find_with_torch(normalized.logits, normalized.block_maxima, num_candidates)
        logits = normalized.logits.gather(-1, ids)
    else:
        ids, logits = select_with_kernels(library, normalized, num_candidates)
    return Candidates(ids, logits, normalized.compute_logprobs(logits), normalized,
                      is_whole_vocabulary=num_candidates == vocabulary_size)


def find_with_torch(logits: Tensor, block_maxima: Tensor, num_candidates: int) -> Tensor:  # [rows, candidates] ids
    if block_maxima.shape[-1] > num_candidates:
        # For each block left out there are `num_candidates` others whose peaks are at least as high as all of its
        # logits.
        ids = list_ids_in_blocks(block_maxima.topk(num_candidates, sorted=False).indices, logits.shape[-1])
        ids = ids.gather(-1, logits.gather(-1, ids).topk(num_candidates, sorted=False).indices)
    else:
        ids = logits.topk(num_candidates, sorted=False).indices
    order = ((to_sortable_int32(logits.gather(-1, ids)).long() << 32) - ids).argsort(-1, descending=True)
    return ids.gather(-1, order)


def sort_whole_vocabulary(normalized: LogitsWithNormalizers) -> Candidates:
    """Return all tokens of a single row as candidates, on the host. Kernels sort only rows that were there before: a
    shard with a GPU need not load them."""
    library = load_cpu_sampling_kernels(normalized.logits)
    normalized = normalized.copy_to_host()
    if library is None:
        # torch sorts 32-bit integers by radix sort, ten times as fast as floats.
        ids = (~to_sortable_int32(normalized.logits)).sort(stable=True).indices
        logits = normalized.logits.gather(-1, ids)
    else:
        ids, logits = select_with_kernels(library, normalized, normalized.logits.shape[-1])
    return Candidates(ids, logits, normalized.compute_logprobs(logits), normalized, is_whole_vocabulary=True)


def to_sortable_int32(values: Tensor) -> Tensor:
    """Map float32 values to int32 in the same order."""
    bits = (values + 0.0).view(torch.int32)  # adding 0 turns -0 into 0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
