"""Draws of rows that no filter narrows: among few candidates, best first, and behind those among all other tokens, by
id. So no row has to be sorted, however flat its distribution is.

Nothing waits for the device of the candidates. Sums follow docs/exactness.md, "Sums in a fixed order".
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from shard.sampling.best_candidates import IDS_PER_BLOCK, Candidates
from shard.sampling.filters import compute_running_sums


def draw_from_candidates(candidates: Candidates, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens [rows], and a mask [rows] of those that `draw_from_tail` must draw instead."""
    cumulative = compute_running_sums(compute_certain_probabilities(candidates))
    ranks = (cumulative <= uniforms[:, None]).sum(-1)
    is_in_tail = ranks == cumulative.shape[-1]
    # rounding may leave a whole vocabulary below 1: the best gets the rest
    candidate_ranks = ranks.masked_fill(is_in_tail, 0)
    return (candidates.token_ids.gather(-1, candidate_ranks[:, None])[:, 0],
            torch.zeros_like(is_in_tail) if candidates.is_whole_vocabulary else is_in_tail)


def draw_from_tail(candidates: Candidates, uniforms: Tensor) -> Tensor:  # [rows] tokens
    """Draw among all tokens but the sure candidates, for rows whose uniform number is beyond the sum of these."""
    certain_probabilities = compute_certain_probabilities(candidates)
    probabilities = candidates.all_logprobs.exp()
    probabilities.scatter_(-1, candidates.token_ids,
                           probabilities.gather(-1, candidates.token_ids).masked_fill(certain_probabilities > 0, 0.0))
    share = uniforms - compute_running_sums(certain_probabilities)[:, -1]
    if num_padding := -probabilities.shape[-1] % IDS_PER_BLOCK:
        probabilities = pad(probabilities, (0, num_padding))
    blocks = probabilities.view(len(probabilities), -1, IDS_PER_BLOCK)  # [rows, blocks, ids]
    sums = sum_by_halves(blocks).double()
    block, before, is_short = search_running_sums(sums, share)
    block_probabilities = blocks.gather(1, block[:, None, None].expand(-1, 1, IDS_PER_BLOCK))[:, 0].double()
    index_in_block, _, _ = search_running_sums(block_probabilities, share - before)
    # If rounding leaves the sum of all chances below 1, the best token gets the rest, not the likeliest one behind it.
    falls_back_to_best = ((candidates.is_certain[:, 0] & is_short)
                          | (block_probabilities.gather(-1, index_in_block[:, None])[:, 0] == 0))
    return torch.where(falls_back_to_best, candidates.token_ids[:, 0], block * IDS_PER_BLOCK + index_in_block)


def compute_certain_probabilities(candidates: Candidates) -> Tensor:  # [rows, width]
    return candidates.logprobs.double().exp().where(candidates.is_certain, 0.0)


def sum_by_halves(values: Tensor) -> Tensor:
    """Sum over the last axis, whose length is a power of two, by adding halves, then halves of halves."""
    while (half := values.shape[-1] // 2) > 0:
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def search_running_sums(probabilities: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first index [rows] at which the running sum exceeds the share, the sum before it, and whether the
    whole sum is too small: then the index is that of the largest chance."""
    cumulative = compute_running_sums(probabilities)
    index = (cumulative <= share[:, None]).sum(-1)
    is_short = index == probabilities.shape[-1]
    index = torch.where(is_short, probabilities.argmax(-1), index)[:, None]
    return index[:, 0], (cumulative.gather(-1, index) - probabilities.gather(-1, index))[:, 0], is_short
