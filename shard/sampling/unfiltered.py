"""Draws of rows that no filter narrows: among few candidates, best first, and behind those among all other tokens, by
id. So no row has to be sorted, however flat its distribution is.

Nothing waits for the device of the candidates. Every sum adds in an order that does not depend on the number of rows.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from shard.sampling.candidates import BLOCK, Candidates
from shard.sampling.filters import running


def open_draw(few: Candidates, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens [rows], and a mask [rows] of those that `behind` must draw instead."""
    reached = running(sure_chances(few))
    ranks = (reached <= uniforms[:, None]).sum(-1)
    is_behind = ranks == reached.shape[-1]
    places = ranks.masked_fill(is_behind, 0)  # rounding may leave a whole vocabulary below 1: the best gets the rest
    return few.ids.gather(-1, places[:, None])[:, 0], torch.zeros_like(is_behind) if few.whole else is_behind


def behind(few: Candidates, uniforms: Tensor) -> Tensor:  # [rows] tokens
    """Draw among all tokens but the sure candidates, for rows whose uniform number is beyond the sum of these."""
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
    # If rounding leaves the sum of all chances below 1, the best token gets the rest, not the likeliest one behind it.
    is_nobodys = (few.sure[:, 0] & is_short) | (inside.gather(-1, place[:, None])[:, 0] == 0)
    return torch.where(is_nobodys, few.ids[:, 0], block * BLOCK + place)


def sure_chances(few: Candidates) -> Tensor:  # [rows, width]
    return few.logprobs.double().exp().where(few.sure, 0.0)


def added_up(values: Tensor) -> Tensor:
    """Sum over the last axis, whose length is a power of two, by adding halves, then halves of halves."""
    while (half := values.shape[-1] // 2) > 0:
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def place_of(chances: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first index [rows] at which the running sum exceeds the share, the sum before it, and whether the
    whole sum is too small: then the index is that of the largest chance."""
    reached = running(chances)
    place = (reached <= share[:, None]).sum(-1)
    is_short = place == chances.shape[-1]
    place = torch.where(is_short, chances.argmax(-1), place)[:, None]
    return place[:, 0], (reached.gather(-1, place) - chances.gather(-1, place))[:, 0], is_short
