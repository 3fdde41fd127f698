"""From candidates to the chosen token, its logprob and the best of the others.

Knows nothing of the past of a sequence, of devices, or of where candidates come from.
"""

from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from shard.candidates import Candidates
from shard.filters import FILTERS, Survivors
from shard.sequence import Sampling


@dataclass(slots=True)
class Choice:
    token: int
    logprob: float
    top_tokens: list[int] = field(default_factory=list)  # best first; none that cannot be chosen
    top_logprobs: list[float] = field(default_factory=list)


def choices_of(candidates: Candidates, samplings: list[Sampling], draws: Tensor) -> tuple[list[Choice], list[bool]]:
    """A choice for every row, and whether the candidates were enough to make it. Of `draws` [rows], uniform from 0 to
    below 1, greedy rows use none."""
    survivors = Survivors(candidates)
    for name, drop in FILTERS.items():
        column = [getattr(sampling, name) if sampling.temperature else 0 for sampling in samplings]
        if any(column):
            drop(survivors, torch.tensor(column))
    greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings])
    places = survivors.draw(draws.masked_fill(greedy, 0.0))[:, None]
    logprobs = reported(candidates, survivors, torch.tensor([sampling.raw_logprobs for sampling in samplings]))
    choices = list(map(Choice, candidates.ids.gather(-1, places)[:, 0].tolist(),
                       logprobs.gather(-1, places)[:, 0].tolist()))
    counts = [sampling.top_n_tokens for sampling in samplings]
    if any(counts):
        add_top(choices, candidates, logprobs, counts)
        survivors.decided &= candidates.has(torch.tensor(counts))
    return choices, survivors.decided.tolist()


def reported(candidates: Candidates, survivors: Survivors, raw: Tensor) -> Tensor:  # [rows, width]
    """Logprobs among the survivors of the filters, or among all where `raw` [rows] ones are wanted."""
    among_survivors = survivors.filtered & ~raw
    if not among_survivors.any():
        return candidates.logprobs
    logits = candidates.logits.masked_fill(survivors.chances == 0, -torch.inf)
    return torch.where(among_survivors[:, None], logits.log_softmax(-1), candidates.logprobs)


def add_top(choices: list[Choice], candidates: Candidates, logprobs: Tensor, counts: list[int]) -> None:
    told = logprobs.isfinite()
    told &= told.cumsum(-1) <= torch.tensor(counts)[:, None]
    ids, values = iter(candidates.ids[told].tolist()), iter(logprobs[told].tolist())
    for choice, count in zip(choices, told.sum(-1).tolist(), strict=True):
        choice.top_tokens, choice.top_logprobs = list(islice(ids, count)), list(islice(values, count))
