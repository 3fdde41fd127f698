"""The sampler: from logits to tokens, logprobs and the best candidates, for all rows of a step.

The result of a row depends on its logits and its sequence alone, to the last bit, whatever the other rows are. The
order is penalties and masks, grammars, temperature, filters, draw. Temperature 0 takes the best candidate and ignores
filters.
"""

from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from shard.sampling.candidates import FEW, MANY, Finder, all_of
from shard.sampling.grammar import Grammars
from shard.sampling.penalties import is_processed, process
from shard.sampling.random_draws import uniforms
from shard.sampling.selection import Choice, choices_of
from shard.state.sequence import Sampling, Sequence

ROWS = 32  # sampled at a time, which bounds the memory for copies of logits
LEAST_TEMPERATURE = 1e-30  # below it quotients could overflow; far above it only the largest logit is likely already


@dataclass(slots=True)
class Chosen:
    """Results of sampling: one entry per row."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_tokens: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)
    # If one of these is false, the row's other entries are meaningless.
    finite: list[bool] = field(default_factory=list)
    fitting: list[bool] = field(default_factory=list)  # whether the token fits the row's grammar, if it has one

    def add(self, choice: Choice, finite: bool, fitting: bool) -> None:
        self.tokens.append(choice.token)
        self.logprobs.append(choice.logprob)
        self.top_tokens.append(choice.top_tokens)
        self.top_logprobs.append(choice.top_logprobs)
        self.finite.append(finite)
        self.fitting.append(fitting)


class Sampler:
    """Sampler for logits of one vocabulary size."""

    def __init__(self, vocabulary_size: int, device: str | torch.device = "cpu",
                 grammars: Grammars | None = None) -> None:
        """Create a sampler; without `grammars` no sequence may have one."""
        self._grammars = grammars
        self._finder = Finder(vocabulary_size)
        # Kept, since allocating this much memory takes longer than filling it.
        self._logprobs = torch.empty(ROWS, vocabulary_size, device=device)
        self._raw_logprobs = torch.empty_like(self._logprobs)

    def choose(self, logits: Tensor, sequences: list[Sequence]) -> Chosen:
        """Choose a token for each row. The logits [rows, vocabulary] are float32 and are overwritten."""
        chosen = Chosen()
        for start in range(0, len(sequences), ROWS):
            self._choose(logits[start:start + ROWS], sequences[start:start + ROWS], chosen)
        return chosen

    def prompt_logprobs(self, logits: Tensor, targets: list[int]) -> list[float]:
        """Return the logprob of each row's target token, by the unchanged logits [rows, vocabulary]."""
        found: list[float] = []
        for start in range(0, len(targets), ROWS):
            rows = slice(start, start + ROWS)
            ids = torch.tensor(targets[rows], device=logits.device)
            found += take(log_softmax(logits[rows], self._logprobs), ids)
        return found

    def _choose(self, logits: Tensor, sequences: list[Sequence], chosen: Chosen) -> None:
        sums = logits.sum(-1).tolist()  # not finite where a logit is not
        raw = self._raw(logits, sequences) if any(map(wants_raw, sequences)) else None
        process(logits, sequences)
        lost = self._mask(logits, sequences)
        cool(logits, [sequence.sampling.temperature for sequence in sequences])
        choices = self._choices(logits, sequences)
        # If no token is left to choose from, the logprob is not finite.
        finite = [isfinite(total) and isfinite(choice.logprob) for total, choice in zip(sums, choices, strict=True)]
        if raw is not None:
            self._retell(choices, raw, sequences)
        for row, (choice, is_finite) in enumerate(zip(choices, finite, strict=True)):
            chosen.add(choice, is_finite, row not in lost and self._fits(sequences[row], choice, is_finite))

    def _mask(self, logits: Tensor, sequences: list[Sequence]) -> set[int]:
        """Mask tokens that do not fit the grammars; return the rows whose grammar allows no token."""
        if self._grammars is None or not any(sequence.grammar for sequence in sequences):
            return set()
        return self._grammars.mask(logits, sequences)

    def _fits(self, sequence: Sequence, choice: Choice, is_finite: bool) -> bool:
        if self._grammars is None or not sequence.grammar or not is_finite:
            return True
        return self._grammars.advance(sequence, choice.token)

    def _choices(self, logits: Tensor, sequences: list[Sequence]) -> list[Choice]:
        logprobs, samplings = log_softmax(logits, self._logprobs), [sequence.sampling for sequence in sequences]
        if not any(sampling.temperature for sampling in samplings):
            return self._best(logits, logprobs, [sampling.top_n_tokens for sampling in samplings])
        draws = uniforms([sequence.key for sequence in sequences], [len(sequence.tokens) for sequence in sequences])
        return self._pick(logits, logprobs, samplings, draws)

    def _best(self, logits: Tensor, logprobs: Tensor, counts: list[int]) -> list[Choice]:
        if any(counts):
            samplings = [Sampling(top_n_tokens=count) for count in counts]
            return self._pick(logits, logprobs, samplings, torch.zeros(len(counts), dtype=torch.float64))
        best = self._finder.best(logits)
        return list(map(Choice, best.tolist(), take(logprobs, best)))

    def _pick(self, logits: Tensor, logprobs: Tensor, samplings: list[Sampling], draws: Tensor) -> list[Choice]:
        """Choose from few candidates; where those are not enough from many, and then from the whole vocabulary."""
        choices, decided = choices_of(self._finder.candidates(logits, logprobs, FEW), samplings, draws)
        for row in (row for row, is_decided in enumerate(decided) if not is_decided):
            one = slice(row, row + 1)  # by itself, so that nothing depends on which other rows were not decided
            (choices[row],), (enough,) = choices_of(
                self._finder.candidates(logits[one], logprobs[one], MANY), samplings[one], draws[one])
            if not enough:
                (choices[row],), _ = choices_of(all_of(logits[row], logprobs[row]), samplings[one], draws[one])
        return choices

    def _raw(self, logits: Tensor, sequences: list[Sequence]) -> list[Choice]:
        """Return the best tokens by the raw logits, and keep the raw logprobs for `_retell`."""
        counts = [sequence.sampling.top_n_tokens if wants_raw(sequence) else 0 for sequence in sequences]
        return self._best(logits, log_softmax(logits, self._raw_logprobs), counts)

    def _retell(self, choices: list[Choice], raw: list[Choice], sequences: list[Sequence]) -> None:
        tokens = torch.tensor([choice.token for choice in choices], device=self._raw_logprobs.device)
        logprobs = take(self._raw_logprobs[:len(tokens)], tokens)
        for choice, logprob, best, sequence in zip(choices, logprobs, raw, sequences, strict=True):
            if wants_raw(sequence):
                choice.logprob, choice.top_tokens, choice.top_logprobs = logprob, best.top_tokens, best.top_logprobs


def wants_raw(sequence: Sequence) -> bool:
    """Whether the sequence wants raw logprobs, of logits that are about to change."""
    sampling = sequence.sampling
    changed = is_processed(sequence) or sequence.grammar or sampling.temperature not in {0.0, 1.0}
    return sampling.raw_logprobs and bool(changed)


def cool(logits: Tensor, temperatures: list[float]) -> None:
    divisors = list(map(divisor, temperatures))
    if any(one != 1.0 for one in divisors):
        logits /= torch.tensor(divisors, device=logits.device)[:, None]


def divisor(temperature: float) -> float:
    """Return the divisor of a row's logits; 1 keeps their bits."""
    return max(temperature, LEAST_TEMPERATURE) if temperature else 1.0


def log_softmax(logits: Tensor, into: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, out=into[:len(logits)])


def take(values: Tensor, ids: Tensor) -> list[float]:
    """Return the value of each row at its id."""
    found: list[float] = values.gather(-1, ids[:, None])[:, 0].tolist()
    return found
