"""The best candidates of every row of logits, found on the logits' device without sorting the vocabulary.

Best means the highest logit, and the lowest id among equal ones (docs/concepts/exactness.md, "Each row is sampled by
itself"). The largest logits are in the blocks of ids with the largest maxima, so after one fast pass over all logits
only a few blocks are searched.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_FEW_CANDIDATES, NUM_MANY_CANDIDATES = 65, 4097  # candidates per row; the last one only bounds all others
IDS_PER_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of some rows, best first.

    Unless these are the whole vocabulary, candidates with the same logit as the last one are not sure: tokens that are
    left out may have that logit and lower ids. No token that is left out has a higher one.
    """

    token_ids: Tensor  # [rows, width] int64
    logits: Tensor  # [rows, width]
    logprobs: Tensor  # [rows, width], normalized over the whole vocabulary
    all_logprobs: Tensor  # [rows, vocabulary], the logprobs of all tokens, by id
    is_whole_vocabulary: bool

    def take_best(self, num_candidates: int) -> "Candidates":
        if num_candidates >= self.token_ids.shape[-1]:
            return self
        return Candidates(self.token_ids[:, :num_candidates], self.logits[:, :num_candidates],
                          self.logprobs[:, :num_candidates], self.all_logprobs, is_whole_vocabulary=False)

    def select_rows(self, rows: Tensor) -> "Candidates":
        return Candidates(self.token_ids[rows], self.logits[rows], self.logprobs[rows], self.all_logprobs[rows],
                          self.is_whole_vocabulary)

    @property
    def is_certain(self) -> Tensor:  # [rows, width] bool
        return (torch.ones_like(self.token_ids, dtype=torch.bool) if self.is_whole_vocabulary
                else self.logits > self.logits[:, -1:])

    def has_enough(self, counts: Tensor) -> Tensor:  # [rows] bool
        """Whether `counts` [rows] candidates are sure, or all tokens that can be chosen are among them."""
        return (self.is_certain.sum(-1) >= counts) | (self.logits[:, -1] == -torch.inf) | self.is_whole_vocabulary


class CandidateFinder:
    """Finder of candidates in rows of one vocabulary size."""

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._num_blocks = vocabulary_size // IDS_PER_BLOCK

    def find_best(self, logits: Tensor) -> Tensor:  # [rows] int64
        if not self._num_blocks:
            return logits.argmax(-1)
        ids = self._list_ids_in_blocks(self._compute_block_maxima(logits).argmax(-1, keepdim=True))
        return ids.gather(-1, logits.gather(-1, ids).argmax(-1, keepdim=True))[:, 0]

    def find_candidates(self, logits: Tensor, logprobs: Tensor, num_candidates: int) -> Candidates:
        """Return `num_candidates` candidates per row, or the whole vocabulary if that is smaller."""
        num_candidates = min(num_candidates, self._vocabulary_size)
        if self._num_blocks > num_candidates:
            # For each block left out there are `num_candidates` others whose peaks are at least as high as all of its
            # logits.
            ids = self._list_ids_in_blocks(
                self._compute_block_maxima(logits).topk(num_candidates, sorted=False).indices)
            ids = ids.gather(-1, logits.gather(-1, ids).topk(num_candidates, sorted=False).indices)
        else:
            ids = logits.topk(num_candidates, sorted=False).indices
        order = ((to_sortable_int32(logits.gather(-1, ids)).long() << 32) - ids).argsort(-1, descending=True)
        ids = ids.gather(-1, order)
        return Candidates(ids, logits.gather(-1, ids), logprobs.gather(-1, ids), logprobs,
                          is_whole_vocabulary=num_candidates == self._vocabulary_size)

    def _compute_block_maxima(self, logits: Tensor) -> Tensor:  # [rows, blocks]
        return logits[:, :self._num_blocks * IDS_PER_BLOCK].view(-1, self._num_blocks, IDS_PER_BLOCK).amax(-1)

    def _list_ids_in_blocks(self, blocks: Tensor) -> Tensor:
        """Return all ids in these blocks [rows, blocks], and the ids at the end that fill no block."""
        ids = (blocks[..., None] * IDS_PER_BLOCK + torch.arange(IDS_PER_BLOCK, device=blocks.device)).flatten(1)
        if self._vocabulary_size % IDS_PER_BLOCK == 0:
            return ids
        rest = torch.arange(self._num_blocks * IDS_PER_BLOCK, self._vocabulary_size, device=blocks.device)
        return torch.cat([ids, rest.expand(len(blocks), -1)], -1)


def sort_whole_vocabulary(logits: Tensor, logprobs: Tensor) -> Candidates:
    """Return all tokens of a single row [vocabulary] as candidates, on the host."""
    logits, logprobs = logits.cpu(), logprobs.cpu()
    # torch sorts 32-bit integers by radix sort, ten times as fast as floats.
    order = (~to_sortable_int32(logits)).sort(stable=True).indices
    return Candidates(order[None], logits[order][None], logprobs[order][None], logprobs[None], is_whole_vocabulary=True)


def to_sortable_int32(values: Tensor) -> Tensor:
    """Map float32 values to int32 in the same order."""
    bits = (values + 0.0).view(torch.int32)  # adding 0 turns -0 into 0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
