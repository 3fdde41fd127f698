"""Sampling filters, which decide which candidates may be drawn, and the draw.

Each filter drops candidates of the rows that use it; other rows keep their bits. Rows hold their best candidates only,
and a filter, or the draw, may depend on tokens beyond: then the row is not `decided`, and must be sampled with its
whole vocabulary. A decided row would have the same result with its whole vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shard.sampling.candidates import Candidates

SEQUENTIAL = ("cpu",)  # devices where torch adds up a row from its beginning to its end


class Survivors:
    """Candidates that may still be drawn."""

    def __init__(self, candidates: Candidates) -> None:
        chances = candidates.logprobs.double().exp()
        num_rows, width = chances.shape
        self.ranks = torch.arange(width, device=chances.device)
        self.chances = chances.where(candidates.sure, 0.0)  # [rows, width]; 0: dropped, or not sure
        self.total = chances.new_ones(num_rows)  # of all survivors, those beyond included
        self.most_beyond = torch.zeros_like(self.total) if candidates.whole else chances[:, -1]
        self.complete = self.most_beyond == 0  # no token beyond the candidates may be drawn
        self.decided = torch.ones(num_rows, dtype=torch.bool, device=chances.device)
        self.filtered = ~self.decided

    @property
    def reached(self) -> Tensor:  # [rows, width]
        """Chance of each candidate plus those of all better ones."""
        return running(self.chances)

    def keep(self, asked: Tensor, kept: Tensor, ends: Tensor) -> None:
        """Drop all but `kept` [rows, width] in the rows `asked`. Where `ends` is true, no token beyond is kept."""
        self.complete |= asked & ends
        self.decided &= self.complete | ~asked
        self.filtered |= asked
        self.chances = self.chances.where(kept | ~asked[:, None], 0.0)
        self.total = torch.where(asked, self.reached[:, -1], self.total)

    def draw(self, uniforms: Tensor) -> Tensor:  # [rows] ranks
        """Return the first rank at which the running sum exceeds this share of the total. If rounding leaves the sum
        of a whole vocabulary's chances below 1, the best token gets the rest."""
        ranks = (self.reached <= (uniforms * self.total)[:, None]).sum(-1)
        beyond = ranks == len(self.ranks)
        self.decided &= self.complete | ~beyond
        return torch.where(beyond, self.chances.argmax(-1), ranks)


def top_k(rows: Survivors, most: Tensor) -> None:
    rows.keep(most > 0, rows.ranks < most[:, None], (rows.chances > 0).sum(-1) >= most)


def top_p(rows: Survivors, share: Tensor) -> None:
    """Keep the fewest candidates, from the best on, that have the share together."""
    wanted, reached = share * rows.total, rows.reached
    rows.keep(is_share(share), reached - rows.chances < wanted[:, None], reached[:, -1] >= wanted)


def typical_p(rows: Survivors, share: Tensor) -> None:
    """Keep the fewest candidates that have the share together, those with information nearest to the entropy first."""
    chances = rows.chances / rows.total[:, None]
    entropy = running(torch.special.entr(chances))[:, -1:]
    order = (-chances.log() - entropy).abs().sort(dim=-1, stable=True).indices
    ordered = chances.gather(-1, order)
    before = running(ordered) - ordered
    kept = torch.empty_like(order, dtype=torch.bool).scatter(-1, order, before < share[:, None])
    rows.keep(is_share(share), kept, rows.complete)


def min_p(rows: Survivors, share: Tensor) -> None:
    """Keep candidates with at least this share of the best one's chance."""
    least = share * rows.chances.amax(-1)
    rows.keep(share > 0, rows.chances >= least[:, None], rows.most_beyond < least)


def running(values: Tensor) -> Tensor:  # [rows, width]
    """Return the running sums. On a GPU torch adds in an order that depends on the number of rows, so there each entry
    adds the one 1, 2, 4, .. entries before it."""
    if values.device.type in SEQUENTIAL:
        return values.cumsum(-1)
    distance = 1
    while distance < values.shape[-1]:
        values = torch.cat([values[:, :distance], values[:, distance:] + values[:, :-distance]], -1)
        distance *= 2
    return values


def is_share(share: Tensor) -> Tensor:
    return (share > 0) & (share < 1)


# By sampling parameter, in the order in which the filters apply.
FILTERS: dict[str, Callable[[Survivors, Tensor], None]] = {
    "top_k": top_k, "top_p": top_p, "typical_p": typical_p, "min_p": min_p}
