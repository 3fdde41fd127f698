"""From candidates to the chosen token, its logprob and the best of the others.

What `pick` does can be captured with a step: then it never waits for the device that candidates are on. Knows nothing
of the past of a sequence, or of where candidates come from.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from shard.candidates import FEW, Candidates
from shard.filters import FILTERS, Survivors
from shard.sequence import Sampling
from shard.unfiltered import behind, open_draw


@dataclass(slots=True)
class Choice:
    token: int
    logprob: float
    top_tokens: list[int] = field(default_factory=list)  # best first; none that cannot be chosen
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """What rows ask for, a column each, where their candidates are."""

    draws: Tensor  # float64, uniform from 0 to below 1; 0 takes the best
    raw: Tensor  # bool: logprobs among all, not among what filters leave
    filters: dict[str, Tensor]  # by name; what is not here nobody asks for


class Picked(NamedTuple):
    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    decided: Tensor  # [rows] bool, whether the candidates were enough
    among: Tensor  # [rows, width], the candidates' logprobs


def choices_of(candidates: Candidates, samplings: list[Sampling], draws: Tensor) -> tuple[list[Choice], list[bool]]:
    """A choice for every row, and whether the candidates were enough to make it. Of `draws` [rows], uniform from 0 to
    below 1, greedy rows use none."""
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
    """Where this is `captured`, what few rows need is done for all, since nobody looks whether it is needed."""
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
    """For the rows that are open; what the others get means nothing."""
    tokens, is_behind = open_draw(few, uniforms)
    is_behind &= is_open
    if captured:
        return torch.where(is_behind, behind(few, uniforms), tokens)
    if bool(is_behind.any()):
        tokens[is_behind] = behind(few.rows(is_behind), uniforms[is_behind])
    return tokens


def reported(candidates: Candidates, survivors: Survivors, raw: Tensor) -> Tensor:  # [rows, width]
    """Logprobs among the survivors of the filters, or among all where `raw` [rows] ones are wanted."""
    among_survivors = survivors.filtered & ~raw
    logits = candidates.logits.masked_fill(survivors.chances == 0, -torch.inf)
    return torch.where(among_survivors[:, None], logits.log_softmax(-1), candidates.logprobs)


def add_top(choices: list[Choice], candidates: Candidates, logprobs: Tensor, most: Tensor) -> None:
    told = logprobs.isfinite()
    told &= told.cumsum(-1) <= most[:, None]
    ids, values = iter(candidates.ids[told].tolist()), iter(logprobs[told].tolist())
    for choice, count in zip(choices, told.sum(-1).tolist(), strict=True):
        choice.top_tokens, choice.top_logprobs = list(islice(ids, count)), list(islice(values, count))
