"""The best candidates of every row of logits, found on the logits' device without sorting the vocabulary.

Best means the highest logit, and the lowest id among equal ones. The result of a row depends on that row alone. The
largest logits are in the blocks of ids with the largest maxima, so after one fast pass over all logits only a few
blocks are searched.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FEW, MANY = 65, 4097  # candidates per row; the last one only bounds all others
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of some rows, best first.

    Unless these are the whole vocabulary, candidates with the same logit as the last one are not sure: tokens that are
    left out may have that logit and lower ids. No token that is left out has a higher one.
    """

    ids: Tensor  # [rows, width] int64
    logits: Tensor  # [rows, width]
    logprobs: Tensor  # [rows, width], normalised over the whole vocabulary
    everybody: Tensor  # [rows, vocabulary], the logprobs of all tokens, by id
    whole: bool

    def first(self, width: int) -> "Candidates":
        """Return the best `width` candidates."""
        if width >= self.ids.shape[-1]:
            return self
        return Candidates(self.ids[:, :width], self.logits[:, :width], self.logprobs[:, :width], self.everybody,
                          whole=False)

    def rows(self, which: Tensor) -> "Candidates":
        """Return the candidates of some rows."""
        return Candidates(self.ids[which], self.logits[which], self.logprobs[which], self.everybody[which], self.whole)

    @property
    def sure(self) -> Tensor:  # [rows, width] bool
        return torch.ones_like(self.ids, dtype=torch.bool) if self.whole else self.logits > self.logits[:, -1:]

    def has(self, counts: Tensor) -> Tensor:  # [rows] bool
        """Whether `counts` [rows] candidates are sure, or all tokens that can be chosen are among them."""
        return (self.sure.sum(-1) >= counts) | (self.logits[:, -1] == -torch.inf) | self.whole


class Finder:
    """Finder of candidates in rows of one vocabulary size."""

    def __init__(self, vocabulary_size: int) -> None:
        self._size = vocabulary_size
        self._num_blocks = vocabulary_size // BLOCK

    def best(self, logits: Tensor) -> Tensor:  # [rows] int64
        if not self._num_blocks:
            return logits.argmax(-1)
        ids = self._around(self._peaks(logits).argmax(-1, keepdim=True))
        return ids.gather(-1, logits.gather(-1, ids).argmax(-1, keepdim=True))[:, 0]

    def candidates(self, logits: Tensor, logprobs: Tensor, width: int) -> Candidates:
        """Return `width` candidates per row, or the whole vocabulary if that is smaller."""
        width = min(width, self._size)
        if self._num_blocks > width:
            # For each block left out there are `width` others whose peaks are at least as high as all of its logits.
            ids = self._around(self._peaks(logits).topk(width, sorted=False).indices)
            ids = ids.gather(-1, logits.gather(-1, ids).topk(width, sorted=False).indices)
        else:
            ids = logits.topk(width, sorted=False).indices
        return best_first(ids, logits.gather(-1, ids), logprobs, whole=width == self._size)

    def _peaks(self, logits: Tensor) -> Tensor:  # [rows, blocks]
        return logits[:, :self._num_blocks * BLOCK].view(-1, self._num_blocks, BLOCK).amax(-1)

    def _around(self, blocks: Tensor) -> Tensor:
        """Return all ids in these blocks [rows, blocks], and the ids at the end that fill no block."""
        ids = (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=blocks.device)).flatten(1)
        if self._size % BLOCK == 0:
            return ids
        rest = torch.arange(self._num_blocks * BLOCK, self._size, device=blocks.device)
        return torch.cat([ids, rest.expand(len(blocks), -1)], -1)


def best_first(ids: Tensor, logits: Tensor, everybody: Tensor, whole: bool) -> Candidates:
    order = ((rising(logits).long() << 32) - ids).argsort(-1, descending=True)
    ids = ids.gather(-1, order)
    return Candidates(ids, logits.gather(-1, order), everybody.gather(-1, ids), everybody, whole)


def all_of(logits: Tensor, logprobs: Tensor) -> Candidates:
    """Return all tokens of a single row [vocabulary] as candidates, on the host."""
    logits, logprobs = logits.cpu(), logprobs.cpu()
    # torch sorts 32-bit integers by radix sort, ten times as fast as floats.
    order = (~rising(logits)).sort(stable=True).indices
    return Candidates(order[None], logits[order][None], logprobs[order][None], logprobs[None], whole=True)


def rising(values: Tensor) -> Tensor:
    """Map float32 values to int32 in the same order."""
    bits = (values + 0.0).view(torch.int32)  # adding 0 turns -0 into 0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
