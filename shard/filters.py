"""Which candidates may be drawn, and the draw.

Each filter drops candidates of the rows that ask for it; other rows keep their bits. Rows hold their best candidates
only, and a filter, or the draw, may need to know of those beyond: then the row is not `decided`, and has to be looked
at with its whole vocabulary. What is decided comes out the same there. Knows nothing of sequences, or of what was done
to logits before.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shard.candidates import Candidates

SEQUENTIAL = ("cpu",)  # devices where torch adds up a row from its begin to its end


class Survivors:
    """Candidates that may still be drawn."""

    def __init__(self, candidates: Candidates) -> None:
        chances = candidates.logprobs.double().exp()
        num_rows, width = chances.shape
        self.ranks = torch.arange(width, device=chances.device)
        self.chances = chances.where(candidates.sure, 0.0)  # [rows, width]; 0: dropped, or not sure
        self.total = chances.new_ones(num_rows)  # of all survivors, those beyond included
        self.most_beyond = torch.zeros_like(self.total) if candidates.whole else chances[:, -1]
        self.complete = self.most_beyond == 0  # there is none beyond
        self.decided = torch.ones(num_rows, dtype=torch.bool, device=chances.device)
        self.filtered = ~self.decided

    @property
    def reached(self) -> Tensor:  # [rows, width]
        """Together with all that are better."""
        return running(self.chances)

    def keep(self, asked: Tensor, kept: Tensor, ends: Tensor) -> None:
        """In the rows `asked` drop all but `kept` [rows, width]. Where it `ends`, none beyond is kept."""
        self.complete |= asked & ends
        self.decided &= self.complete | ~asked
        self.filtered |= asked
        self.chances = self.chances.where(kept | ~asked[:, None], 0.0)
        self.total = torch.where(asked, self.reached[:, -1], self.total)

    def draw(self, uniforms: Tensor) -> Tensor:  # [rows] ranks
        """The first one with which more than this share of the total is reached. What the chances of a whole vocabulary
        lack to 1, by rounding, goes to the best."""
        ranks = (self.reached <= (uniforms * self.total)[:, None]).sum(-1)
        beyond = ranks == len(self.ranks)
        self.decided &= self.complete | ~beyond
        return torch.where(beyond, self.chances.argmax(-1), ranks)


def top_k(rows: Survivors, most: Tensor) -> None:
    rows.keep(most > 0, rows.ranks < most[:, None], (rows.chances > 0).sum(-1) >= most)


def top_p(rows: Survivors, share: Tensor) -> None:
    """The fewest, from the best on, that have the share together."""
    wanted, reached = share * rows.total, rows.reached
    rows.keep(is_share(share), reached - rows.chances < wanted[:, None], reached[:, -1] >= wanted)


def typical_p(rows: Survivors, share: Tensor) -> None:
    """The fewest that have the share together, from those on whose information is nearest to the entropy."""
    chances = rows.chances / rows.total[:, None]
    entropy = running(torch.special.entr(chances))[:, -1:]
    order = (-chances.log() - entropy).abs().sort(dim=-1, stable=True).indices
    ordered = chances.gather(-1, order)
    before = running(ordered) - ordered
    kept = torch.empty_like(order, dtype=torch.bool).scatter(-1, order, before < share[:, None])
    rows.keep(is_share(share), kept, rows.complete)


def min_p(rows: Survivors, share: Tensor) -> None:
    """Those that have at least so much of the best one's chance."""
    least = share * rows.chances.amax(-1)
    rows.keep(share > 0, rows.chances >= least[:, None], rows.most_beyond < least)


def running(values: Tensor) -> Tensor:  # [rows, width]
    """Sums up to each place. On a GPU torch adds up in an order that the number of rows decides, so there every place
    takes what stands 1, 2, 4, .. places before it."""
    if values.device.type in SEQUENTIAL:
        return values.cumsum(-1)
    distance = 1
    while distance < values.shape[-1]:
        values = torch.cat([values[:, :distance], values[:, distance:] + values[:, :-distance]], -1)
        distance *= 2
    return values


def is_share(share: Tensor) -> Tensor:
    return (share > 0) & (share < 1)


# By the parameter that asks for it, in the order in which they apply.
FILTERS: dict[str, Callable[[Survivors, Tensor], None]] = {
    "top_k": top_k, "top_p": top_p, "typical_p": typical_p, "min_p": min_p}
