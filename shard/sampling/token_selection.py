"""Choice of a token among candidates, with its logprob and the best candidates.

A uniform number decides, which is a hash of the sequence's key and the token's index, and of nothing else
(docs/concepts/exactness.md, "Each row is sampled by itself"). Rows that no filter narrows draw among few candidates,
best first, and behind those among all other tokens, by id: so no row has to be sorted, however flat its distribution
is. Sums follow docs/concepts/exactness.md, "Sums in a fixed order". `select_tokens` can be captured with a step: then
it never waits for the device of the candidates.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from shard.sampling.best_candidates import NUM_FEW_CANDIDATES, Candidates
from shard.sampling.filters import FILTERS, RemainingCandidates, compute_running_sums, search_running_sums
from shard.sampling.logits_with_normalizers import IDS_PER_BLOCK
from shard.state.sequence import SamplingParams

# Of the splitmix64 generator.
SPLITMIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
SPLITMIX_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(slots=True)
class SampledToken:
    """The chosen token of one row, with its logprob and the best candidates, on the host."""

    token: int
    logprob: float
    top_tokens: list[int] = field(default_factory=list)  # best first; only tokens that can be chosen
    top_logprobs: list[float] = field(default_factory=list)


class SelectedTokens(NamedTuple):
    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    is_decided: Tensor  # [rows] bool, whether the candidates were enough
    candidate_logprobs: Tensor  # [rows, width], the candidates' logprobs


def sample_from_candidates(candidates: Candidates, sampling_params: list[SamplingParams],
                           uniforms: Tensor) -> tuple[list[SampledToken], list[bool]]:
    """Return a choice for every row, and whether its candidates were enough to make it. `uniforms` [rows] are uniform
    from 0 to below 1; greedy rows ignore them."""
    device = candidates.token_ids.device
    *filters, draws, raw = list_filter_columns(sampling_params, uniforms)
    selection = select_tokens(
        candidates, torch.tensor(draws, dtype=torch.float64, device=device), torch.tensor(raw, device=device),
        {name: torch.tensor(column, device=device) for name, column in zip(FILTERS, filters, strict=True)
         if any(column)})
    sampled_tokens = list(map(SampledToken, selection.tokens.tolist(), selection.logprobs.tolist()))
    decided, top_counts = selection.is_decided, [sampling.top_n_tokens for sampling in sampling_params]
    if any(top_counts):
        max_counts, logprobs = torch.tensor(top_counts, device=device), selection.candidate_logprobs
        is_reported = logprobs.isfinite()
        is_reported &= is_reported.cumsum(-1) <= max_counts[:, None]
        ids, values = iter(candidates.token_ids[is_reported].tolist()), iter(logprobs[is_reported].tolist())
        for sampled_token, count in zip(sampled_tokens, is_reported.sum(-1).tolist(), strict=True):
            sampled_token.top_tokens, sampled_token.top_logprobs = list(islice(ids, count)), list(islice(values, count))
        decided = decided & candidates.has_enough(max_counts)
    return sampled_tokens, decided.tolist()


def list_filter_columns(sampling_params: list[SamplingParams], uniforms: Tensor) -> list[list[float]]:
    """Return a column for every filter, one of the uniform numbers, and whether logprobs are raw. Greedy rows have
    zeros, which use no filter and take the best."""
    return [*([getattr(sampling, name) if sampling.temperature else 0 for sampling in sampling_params]
              for name in FILTERS),
            [uniform if sampling.temperature else 0.0
             for sampling, uniform in zip(sampling_params, uniforms.tolist(), strict=True)],
            [sampling.raw_logprobs for sampling in sampling_params]]


def select_tokens(candidates: Candidates, uniforms: Tensor, uses_raw_logprobs: Tensor, filters: dict[str, Tensor], *,
                  is_captured: bool = False) -> SelectedTokens:
    """Filter the candidates and pick a token per row. Arguments are columns on the device of the candidates:
    `uniforms`, float64, from 0 to below 1, 0 takes the best; `uses_raw_logprobs`, bool: logprobs over the whole
    vocabulary, not over the survivors of the filters; `filters` by name, only those that some row uses. If
    `is_captured`, run branches that few rows need for all rows: a CUDA graph cannot branch on data."""
    remaining = RemainingCandidates(candidates)
    for name, column in filters.items():
        FILTERS[name](remaining, column)
    ranks = remaining.draw_ranks(uniforms)[:, None]
    candidate_logprobs = candidates.logprobs
    if filters:  # over the survivors, unless raw ones are wanted
        among_remaining = remaining.is_filtered & ~uses_raw_logprobs
        logits = candidates.logits.masked_fill(remaining.probabilities == 0, -torch.inf)
        candidate_logprobs = torch.where(among_remaining[:, None], logits.log_softmax(-1), candidate_logprobs)
    tokens, logprobs = candidates.token_ids.gather(-1, ranks)[:, 0], candidate_logprobs.gather(-1, ranks)[:, 0]
    is_unfiltered = ~remaining.is_filtered & (uniforms > 0)
    if is_captured or bool(is_unfiltered.any()):
        drawn = draw_unfiltered(candidates.take_best(NUM_FEW_CANDIDATES), uniforms, is_unfiltered,
                                is_captured=is_captured)
        tokens = torch.where(is_unfiltered, drawn, tokens)
        logprobs = torch.where(is_unfiltered, candidates.all_logits.gather_logprobs(drawn), logprobs)
    return SelectedTokens(tokens, logprobs, remaining.is_decided | is_unfiltered, candidate_logprobs)


# ---------------------------------------------------------------------------------------------------------------------
# Draws of rows that no filter narrows


# [rows] tokens
def draw_unfiltered(candidates: Candidates, uniforms: Tensor, is_unfiltered: Tensor, *, is_captured: bool) -> Tensor:
    """Draw without filters for the rows in `is_unfiltered`; the tokens of the other rows are meaningless."""
    ranks, _, is_in_tail = search_running_sums(zero_uncertain_probabilities(candidates), uniforms)
    tokens = candidates.token_ids.gather(-1, ranks[:, None])[:, 0]
    is_in_tail &= is_unfiltered
    if candidates.is_whole_vocabulary:
        return tokens
    if is_captured:
        return torch.where(is_in_tail, draw_from_tail(candidates, uniforms), tokens)
    if bool(is_in_tail.any()):
        tokens[is_in_tail] = draw_from_tail(candidates.select_rows(is_in_tail), uniforms[is_in_tail])
    return tokens


def draw_from_tail(candidates: Candidates, uniforms: Tensor) -> Tensor:  # [rows] tokens
    """Draw among all tokens but the sure candidates, for rows whose uniform number is beyond the sum of these."""
    certain_probabilities = zero_uncertain_probabilities(candidates)
    probabilities = candidates.all_logits.compute_probabilities()
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
    falls_back_to_best = ((candidates.has_certain_rank[:, 0] & is_short)
                          | (block_probabilities.gather(-1, index_in_block[:, None])[:, 0] == 0))
    return torch.where(falls_back_to_best, candidates.token_ids[:, 0], block * IDS_PER_BLOCK + index_in_block)


def zero_uncertain_probabilities(candidates: Candidates) -> Tensor:  # [rows, width]
    return candidates.logprobs.double().exp().where(candidates.has_certain_rank, 0.0)


def sum_by_halves(values: Tensor) -> Tensor:
    """Sum over the last axis, whose length is a power of two, by adding halves, then halves of halves."""
    while (half := values.shape[-1] // 2) > 0:
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


# ---------------------------------------------------------------------------------------------------------------------
# Uniform numbers


def draw_uniforms(sampling_keys: list[int], token_indices: list[int]) -> Tensor:  # [rows] float64, from 0 to below 1
    """Return the splitmix64 generator's number of each key and index. Sums and products are modulo 2**64."""
    words = np.array(sampling_keys, np.uint64) + np.array(token_indices, np.uint64) * SPLITMIX_INCREMENT
    words = (words ^ (words >> 30)) * SPLITMIX_MULTIPLIERS[0]
    words = (words ^ (words >> 27)) * SPLITMIX_MULTIPLIERS[1]
    return torch.from_numpy(((words ^ (words >> 31)) >> 11) * 2.0**-53)
