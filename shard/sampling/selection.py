"""Choice of a token among candidates, with its logprob and the best candidates.

`select_tokens` can be captured with a step: then it never waits for the device of the candidates.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from shard.sampling.best_candidates import NUM_FEW_CANDIDATES, Candidates
from shard.sampling.filters import FILTERS, RemainingCandidates
from shard.sampling.unfiltered_draws import draw_from_candidates, draw_from_tail
from shard.state.sequence import SamplingParams


@dataclass(slots=True)
class SampledToken:
    """The chosen token of one row, with its logprob and the best candidates, on the host."""

    token: int
    logprob: float
    top_tokens: list[int] = field(default_factory=list)  # best first; only tokens that can be chosen
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """Sampling parameters of the rows, one column each, on the device of their candidates."""

    uniforms: Tensor  # float64, uniform from 0 to below 1; 0 takes the best
    uses_raw_logprobs: Tensor  # bool: logprobs over the whole vocabulary, not over the survivors of the filters
    filters: dict[str, Tensor]  # by name; only filters that some row uses


class SelectedTokens(NamedTuple):
    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    is_decided: Tensor  # [rows] bool, whether the candidates were enough
    candidate_logprobs: Tensor  # [rows, width], the candidates' logprobs


def sample_from_candidates(candidates: Candidates, sampling_params: list[SamplingParams],
                           uniforms: Tensor) -> tuple[list[SampledToken], list[bool]]:
    """Return a choice for every row, and whether its candidates were enough to make it. `uniforms` [rows] are uniform
    from 0 to below 1; greedy rows ignore them."""
    selection = select_tokens(candidates, make_sampling_columns(sampling_params, uniforms, candidates.token_ids.device))
    sampled_tokens = list(map(SampledToken, selection.tokens.tolist(), selection.logprobs.tolist()))
    decided, top_counts = selection.is_decided, [sampling.top_n_tokens for sampling in sampling_params]
    if any(top_counts):
        top_counts_tensor = torch.tensor(top_counts, device=decided.device)
        add_top_tokens(sampled_tokens, candidates, selection.candidate_logprobs, top_counts_tensor)
        decided = decided & candidates.has_enough(top_counts_tensor)
    return sampled_tokens, decided.tolist()


def make_sampling_columns(sampling_params: list[SamplingParams], uniforms: Tensor,
                          device: torch.device) -> SamplingColumns:
    columns = {name: [getattr(sampling, name) if sampling.temperature else 0 for sampling in sampling_params]
               for name in FILTERS}
    is_greedy = torch.tensor([sampling.temperature == 0 for sampling in sampling_params])
    return SamplingColumns(uniforms.masked_fill(is_greedy, 0.0).to(device),
                           torch.tensor([sampling.raw_logprobs for sampling in sampling_params], device=device),
                           {name: torch.tensor(column, device=device) for name, column in columns.items()
                            if any(column)})


def select_tokens(candidates: Candidates, sampling_columns: SamplingColumns, *,
                  is_captured: bool = False) -> SelectedTokens:
    """Filter the candidates and pick a token per row. If `is_captured`, run branches that few rows need for all rows: a
    CUDA graph cannot branch on data."""
    remaining = RemainingCandidates(candidates)
    for name, column in sampling_columns.filters.items():
        FILTERS[name](remaining, column)
    ranks = remaining.draw_ranks(sampling_columns.uniforms)[:, None]
    candidate_logprobs = (compute_reported_logprobs(candidates, remaining, sampling_columns.uses_raw_logprobs)
                          if sampling_columns.filters else candidates.logprobs)
    tokens, logprobs = candidates.token_ids.gather(-1, ranks)[:, 0], candidate_logprobs.gather(-1, ranks)[:, 0]
    is_unfiltered = ~remaining.is_filtered & (sampling_columns.uniforms > 0)
    if is_captured or bool(is_unfiltered.any()):
        drawn = sample_unfiltered(candidates.take_best(NUM_FEW_CANDIDATES), sampling_columns.uniforms, is_unfiltered,
                                  is_captured=is_captured)
        tokens = torch.where(is_unfiltered, drawn, tokens)
        logprobs = torch.where(is_unfiltered, candidates.all_logprobs.gather(-1, drawn[:, None])[:, 0], logprobs)
    return SelectedTokens(tokens, logprobs, remaining.is_decided | is_unfiltered, candidate_logprobs)


# [rows] tokens
def sample_unfiltered(candidates: Candidates, uniforms: Tensor, is_unfiltered: Tensor, *, is_captured: bool) -> Tensor:
    """Draw without filters for the rows in `is_unfiltered`; the tokens of the other rows are meaningless."""
    tokens, is_in_tail = draw_from_candidates(candidates, uniforms)
    is_in_tail &= is_unfiltered
    if is_captured:
        return torch.where(is_in_tail, draw_from_tail(candidates, uniforms), tokens)
    if bool(is_in_tail.any()):
        tokens[is_in_tail] = draw_from_tail(candidates.select_rows(is_in_tail), uniforms[is_in_tail])
    return tokens


def compute_reported_logprobs(candidates: Candidates, remaining: RemainingCandidates,
                              uses_raw_logprobs: Tensor) -> Tensor:  # [rows, width]
    """Return logprobs over the survivors of the filters, or over the whole vocabulary in rows where `uses_raw_logprobs`
    [rows] is true."""
    among_remaining = remaining.is_filtered & ~uses_raw_logprobs
    logits = candidates.logits.masked_fill(remaining.probabilities == 0, -torch.inf)
    return torch.where(among_remaining[:, None], logits.log_softmax(-1), candidates.logprobs)


def add_top_tokens(sampled_tokens: list[SampledToken], candidates: Candidates, logprobs: Tensor,
                   max_counts: Tensor) -> None:
    is_reported = logprobs.isfinite()
    is_reported &= is_reported.cumsum(-1) <= max_counts[:, None]
    ids, values = iter(candidates.token_ids[is_reported].tolist()), iter(logprobs[is_reported].tolist())
    for sampled_token, count in zip(sampled_tokens, is_reported.sum(-1).tolist(), strict=True):
        sampled_token.top_tokens, sampled_token.top_logprobs = list(islice(ids, count)), list(islice(values, count))
