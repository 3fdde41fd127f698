"""Sampling filters, which decide which candidates may be drawn, and the draw.

Each filter drops candidates of the rows that use it; other rows keep their bits. Rows hold their best candidates only,
and a filter, or the draw, may depend on tokens beyond: then the row is not `is_decided`, and must be sampled with its
whole vocabulary. A decided row would have the same result with its whole vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shard.sampling.best_candidates import Candidates

SEQUENTIAL_SUM_DEVICES = ("cpu",)  # devices where torch adds up a row from its beginning to its end


class RemainingCandidates:
    """Candidates that may still be drawn."""

    def __init__(self, candidates: Candidates) -> None:
        probabilities = candidates.logprobs.double().exp()
        num_rows, width = probabilities.shape
        self.ranks = torch.arange(width, device=probabilities.device)
        self.probabilities = probabilities.where(candidates.has_certain_rank, 0.0)  # [rows, width]; 0: dropped, unsure
        self.total_probability = probabilities.new_ones(num_rows)  # of all survivors, those beyond included
        self.max_probability_beyond = (torch.zeros_like(self.total_probability) if candidates.is_whole_vocabulary
                                       else probabilities[:, -1])
        self.is_complete = self.max_probability_beyond == 0  # no token beyond the candidates may be drawn
        self.is_decided = torch.ones(num_rows, dtype=torch.bool, device=probabilities.device)
        self.is_filtered = ~self.is_decided

    def keep_only(self, filtered_rows: Tensor, kept_candidates: Tensor, keeps_none_beyond: Tensor) -> None:
        """Drop all but `kept_candidates` [rows, width] in the rows `filtered_rows`. Where `keeps_none_beyond` is true,
        no token beyond is kept."""
        self.is_complete |= filtered_rows & keeps_none_beyond
        self.is_decided &= self.is_complete | ~filtered_rows
        self.is_filtered |= filtered_rows
        self.probabilities = self.probabilities.where(kept_candidates | ~filtered_rows[:, None], 0.0)
        self.total_probability = torch.where(filtered_rows, compute_running_sums(self.probabilities)[:, -1],
                                             self.total_probability)

    def draw_ranks(self, uniforms: Tensor) -> Tensor:  # [rows] ranks
        """Return the first rank at which the running sum exceeds this share of the total. If rounding leaves the sum
        of a whole vocabulary's chances below 1, the best token gets the rest."""
        ranks, _, is_beyond = search_running_sums(self.probabilities, uniforms * self.total_probability)
        self.is_decided &= self.is_complete | ~is_beyond
        return ranks


def filter_top_k(remaining: RemainingCandidates, max_candidates: Tensor) -> None:
    remaining.keep_only(max_candidates > 0, remaining.ranks < max_candidates[:, None],
                        (remaining.probabilities > 0).sum(-1) >= max_candidates)


def filter_top_p(remaining: RemainingCandidates, p: Tensor) -> None:
    """Keep the fewest candidates, from the best on, that have the share together."""
    target, cumulative = p * remaining.total_probability, compute_running_sums(remaining.probabilities)
    remaining.keep_only(is_proper_fraction(p), cumulative - remaining.probabilities < target[:, None],
                        cumulative[:, -1] >= target)


def filter_typical_p(remaining: RemainingCandidates, p: Tensor) -> None:
    """Keep the fewest candidates that have the share together, those with information nearest to the entropy first."""
    probabilities = remaining.probabilities / remaining.total_probability[:, None]
    entropy = compute_running_sums(torch.special.entr(probabilities))[:, -1:]
    order = (-probabilities.log() - entropy).abs().sort(dim=-1, stable=True).indices
    ordered = probabilities.gather(-1, order)
    cumulative_before = compute_running_sums(ordered) - ordered
    kept = torch.empty_like(order, dtype=torch.bool).scatter(-1, order, cumulative_before < p[:, None])
    remaining.keep_only(is_proper_fraction(p), kept, remaining.is_complete)


def filter_min_p(remaining: RemainingCandidates, p: Tensor) -> None:
    """Keep candidates with at least this share of the best one's chance."""
    min_probability = p * remaining.probabilities.amax(-1)
    remaining.keep_only(p > 0, remaining.probabilities >= min_probability[:, None],
                        remaining.max_probability_beyond < min_probability)


def compute_running_sums(values: Tensor) -> Tensor:  # [rows, width]
    """Return the running sums. On a GPU each entry adds the one 1, 2, 4, .. entries before it:
    docs/concepts/exactness.md, "Sums in a fixed order"."""
    if values.device.type in SEQUENTIAL_SUM_DEVICES:
        return values.cumsum(-1)
    distance = 1
    while distance < values.shape[-1]:
        values = torch.cat([values[:, :distance], values[:, distance:] + values[:, :-distance]], -1)
        distance *= 2
    return values


def search_running_sums(probabilities: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first index [rows] at which the running sum exceeds the share, the sum before it, and whether the
    whole sum is too small: then the index is that of the largest chance."""
    cumulative = compute_running_sums(probabilities)
    index = (cumulative <= share[:, None]).sum(-1)
    is_short = index == probabilities.shape[-1]
    index = torch.where(is_short, probabilities.argmax(-1), index)[:, None]
    return index[:, 0], (cumulative.gather(-1, index) - probabilities.gather(-1, index))[:, 0], is_short


def is_proper_fraction(values: Tensor) -> Tensor:
    return (values > 0) & (values < 1)


# By sampling parameter, in the order in which the filters apply.
FILTERS: dict[str, Callable[[RemainingCandidates, Tensor], None]] = {
    "top_k": filter_top_k, "top_p": filter_top_p, "typical_p": filter_typical_p, "min_p": filter_min_p}
