"""Choice of a token among candidates, with its logprob and the best candidates.

`pick` can be captured with a step: then it never waits for the device of the candidates.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from shard.sampling.candidates import FEW, Candidates
from shard.sampling.filters import FILTERS, Survivors
from shard.sampling.unfiltered import behind, open_draw
from shard.state.sequence import Sampling


@dataclass(slots=True)
class Choice:
    token: int
    logprob: float
    top_tokens: list[int] = field(default_factory=list)  # best first; only tokens that can be chosen
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """Sampling parameters of the rows, one column each, on the device of their candidates."""

    draws: Tensor  # float64, uniform from 0 to below 1; 0 takes the best
    raw: Tensor  # bool: logprobs over the whole vocabulary, not over the survivors of the filters
    filters: dict[str, Tensor]  # by name; only filters that some row uses


class Picked(NamedTuple):
    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    decided: Tensor  # [rows] bool, whether the candidates were enough
    among: Tensor  # [rows, width], the candidates' logprobs


def choices_of(candidates: Candidates, samplings: list[Sampling], draws: Tensor) -> tuple[list[Choice], list[bool]]:
    """Return a choice for every row, and whether its candidates were enough to make it. `draws` [rows] are uniform from
    0 to below 1; greedy rows ignore them."""
    picked = pick(candidates, asked_by(samplings, draws, candidates.ids.device))
    choices = list(map(Choice, picked.tokens.tolist(), picked.logprobs.tolist()))
    decided, counts = picked.decided, [sampling.top_n_tokens for sampling in samplings]
    if any(counts):
        most = torch.tensor(counts, device=decided.device)
        add_top(choices, candidates, picked.among, most)
        decided = decided & candidates.has(most)
    return choices, decided.tolist()


def asked_by(samplings: list[Sampling], draws: Tensor, device: torch.device) -> Asked:
    columns = {name: [getattr(sampling, name) if sampling.temperature else 0 for sampling in samplings]
               for name in FILTERS}
    greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings])
    return Asked(draws.masked_fill(greedy, 0.0).to(device),
                 torch.tensor([sampling.raw_logprobs for sampling in samplings], device=device),
                 {name: torch.tensor(column, device=device) for name, column in columns.items() if any(column)})


def pick(candidates: Candidates, asked: Asked, *, captured: bool = False) -> Picked:
    """Filter the candidates and pick a token per row. If `captured`, run branches that few rows need for all rows: a
    CUDA graph cannot branch on data."""
    survivors = Survivors(candidates)
    for name, column in asked.filters.items():
        FILTERS[name](survivors, column)
    places = survivors.draw(asked.draws)[:, None]
    among = reported(candidates, survivors, asked.raw) if asked.filters else candidates.logprobs
    tokens, logprobs = candidates.ids.gather(-1, places)[:, 0], among.gather(-1, places)[:, 0]
    is_open = ~survivors.filtered & (asked.draws > 0)
    if captured or bool(is_open.any()):
        drawn = drawn_openly(candidates.first(FEW), asked.draws, is_open, captured=captured)
        tokens = torch.where(is_open, drawn, tokens)
        logprobs = torch.where(is_open, candidates.everybody.gather(-1, drawn[:, None])[:, 0], logprobs)
    return Picked(tokens, logprobs, survivors.decided | is_open, among)


def drawn_openly(few: Candidates, uniforms: Tensor, is_open: Tensor, *, captured: bool) -> Tensor:  # [rows] tokens
    """Draw without filters for the rows in `is_open`; the tokens of the other rows are meaningless."""
    tokens, is_behind = open_draw(few, uniforms)
    is_behind &= is_open
    if captured:
        return torch.where(is_behind, behind(few, uniforms), tokens)
    if bool(is_behind.any()):
        tokens[is_behind] = behind(few.rows(is_behind), uniforms[is_behind])
    return tokens


def reported(candidates: Candidates, survivors: Survivors, raw: Tensor) -> Tensor:  # [rows, width]
    """Return logprobs over the survivors of the filters, or over the whole vocabulary in rows that are `raw` [rows]."""
    among_survivors = survivors.filtered & ~raw
    logits = candidates.logits.masked_fill(survivors.chances == 0, -torch.inf)
    return torch.where(among_survivors[:, None], logits.log_softmax(-1), candidates.logprobs)


def add_top(choices: list[Choice], candidates: Candidates, logprobs: Tensor, most: Tensor) -> None:
    told = logprobs.isfinite()
    told &= told.cumsum(-1) <= most[:, None]
    ids, values = iter(candidates.ids[told].tolist()), iter(logprobs[told].tolist())
    for choice, count in zip(choices, told.sum(-1).tolist(), strict=True):
        choice.top_tokens, choice.top_logprobs = list(islice(ids, count)), list(islice(values, count))
