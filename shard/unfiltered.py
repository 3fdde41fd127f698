"""The draw of rows that no filter narrows: among few candidates, best first, and behind those among all others, by
their ids. So no row has to be sorted, however flat its chances are.

Nothing waits for the device that the candidates are on. Every sum adds up in an order that does not depend on the
number of rows. Knows nothing of sequences, or of filters.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from shard.candidates import BLOCK, Candidates
from shard.filters import running


def open_draw(few: Candidates, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens [rows], and for which rows `behind` has to say another."""
    reached = running(sure_chances(few))
    ranks = (reached <= uniforms[:, None]).sum(-1)
    is_behind = ranks == reached.shape[-1]
    places = ranks.masked_fill(is_behind, 0)  # what a whole vocabulary lacks to 1, by rounding, goes to the best
    return few.ids.gather(-1, places[:, None])[:, 0], torch.zeros_like(is_behind) if few.whole else is_behind


def behind(few: Candidates, uniforms: Tensor) -> Tensor:  # [rows] tokens
    """Among those who are no sure candidates, for rows whose uniform number is beyond these."""
    sure = sure_chances(few)
    chances = few.everybody.exp()
    chances.scatter_(-1, few.ids, chances.gather(-1, few.ids).masked_fill(sure > 0, 0.0))
    share = uniforms - running(sure)[:, -1]
    if missing := -chances.shape[-1] % BLOCK:
        chances = pad(chances, (0, missing))
    blocks = chances.view(len(chances), -1, BLOCK)  # [rows, blocks, ids]
    sums = added_up(blocks).double()
    block, before, is_short = place_of(sums, share)
    inside = blocks.gather(1, block[:, None, None].expand(-1, 1, BLOCK))[:, 0].double()
    place, _, _ = place_of(inside, share - before)
    # What all lack to 1, by rounding, goes to the best, and not to whoever is most likely behind.
    is_nobodys = (few.sure[:, 0] & is_short) | (inside.gather(-1, place[:, None])[:, 0] == 0)
    return torch.where(is_nobodys, few.ids[:, 0], block * BLOCK + place)


def sure_chances(few: Candidates) -> Tensor:  # [rows, width]
    return few.logprobs.double().exp().where(few.sure, 0.0)


def added_up(values: Tensor) -> Tensor:
    """Over the last axis, whose length is a power of two: halves, and halves of halves."""
    while (half := values.shape[-1] // 2) > 0:
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def place_of(chances: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first place [rows] with which more than the share is reached, what is reached before it, and where the sum
    is too short for any: there it is the place of the largest."""
    reached = running(chances)
    place = (reached <= share[:, None]).sum(-1)
    is_short = place == chances.shape[-1]
    place = torch.where(is_short, chances.argmax(-1), place)[:, None]
    return place[:, 0], (reached.gather(-1, place) - chances.gather(-1, place))[:, 0], is_short
