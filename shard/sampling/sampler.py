"""The sampler: from logits to tokens, logprobs and the best candidates, for all rows of a step.

Rows are sampled by docs/exactness.md, "Each row is sampled by itself". The order is penalties and masks, grammars,
temperature, filters, draw. Temperature 0 takes the best candidate and ignores filters.
"""

from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from shard.sampling.best_candidates import (
    NUM_FEW_CANDIDATES,
    NUM_MANY_CANDIDATES,
    CandidateFinder,
    sort_whole_vocabulary,
)
from shard.sampling.grammar import GrammarRegistry
from shard.sampling.logits_processors import needs_processing, process_logits
from shard.sampling.random_draws import draw_uniforms
from shard.sampling.selection import SampledToken, sample_from_candidates
from shard.state.sequence import SamplingParams, Sequence

MAX_ROWS_AT_ONCE = 32  # sampled at a time, which bounds the memory for copies of logits
MIN_TEMPERATURE = 1e-30  # below it quotients could overflow; far above it only the largest logit is likely already


@dataclass(slots=True)
class SamplerOutput:
    """Results of sampling: one entry per row."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_tokens: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)
    # If one of these is false, the row's other entries are meaningless.
    is_finite: list[bool] = field(default_factory=list)
    fits_grammar: list[bool] = field(default_factory=list)  # whether the token fits the row's grammar, if it has one

    def add_row(self, sampled_token: SampledToken, is_finite: bool, fits_grammar: bool) -> None:
        self.tokens.append(sampled_token.token)
        self.logprobs.append(sampled_token.logprob)
        self.top_tokens.append(sampled_token.top_tokens)
        self.top_logprobs.append(sampled_token.top_logprobs)
        self.is_finite.append(is_finite)
        self.fits_grammar.append(fits_grammar)


class Sampler:
    """Sampler for logits of one vocabulary size."""

    def __init__(self, vocabulary_size: int, device: str | torch.device = "cpu",
                 grammars: GrammarRegistry | None = None) -> None:
        """Create a sampler; without `grammars` no sequence may have one."""
        self._grammars = grammars
        self._candidate_finder = CandidateFinder(vocabulary_size)
        # Kept, since allocating this much memory takes longer than filling it.
        self._logprob_buffer = torch.empty(MAX_ROWS_AT_ONCE, vocabulary_size, device=device)
        self._raw_logprob_buffer = torch.empty_like(self._logprob_buffer)

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> SamplerOutput:
        """Choose a token for each row. The logits [rows, vocabulary] are float32 and are overwritten."""
        sampled_batch = SamplerOutput()
        for start in range(0, len(sequences), MAX_ROWS_AT_ONCE):
            self._sample_rows(logits[start:start + MAX_ROWS_AT_ONCE], sequences[start:start + MAX_ROWS_AT_ONCE],
                              sampled_batch)
        return sampled_batch

    def compute_prompt_logprobs(self, logits: Tensor, target_tokens: list[int]) -> list[float]:
        """Return the logprob of each row's target token, by the unchanged logits [rows, vocabulary]."""
        logprobs: list[float] = []
        for start in range(0, len(target_tokens), MAX_ROWS_AT_ONCE):
            rows = slice(start, start + MAX_ROWS_AT_ONCE)
            ids = torch.tensor(target_tokens[rows], device=logits.device)
            logprobs += gather_by_id(compute_log_softmax(logits[rows], self._logprob_buffer), ids)
        return logprobs

    def _sample_rows(self, logits: Tensor, sequences: list[Sequence], sampled_batch: SamplerOutput) -> None:
        sums = logits.sum(-1).tolist()  # not finite where a logit is not
        raw_samples = self._sample_raw_greedy(logits, sequences) if any(map(needs_raw_logprobs, sequences)) else None
        process_logits(logits, sequences)
        dead_rows = self._mask_by_grammars(logits, sequences)
        apply_temperatures(logits, [sequence.sampling.temperature for sequence in sequences])
        sampled_tokens = self._sample_tokens(logits, sequences)
        # If no token is left to choose from, the logprob is not finite.
        finite = [isfinite(total) and isfinite(sampled_token.logprob)
                  for total, sampled_token in zip(sums, sampled_tokens, strict=True)]
        if raw_samples is not None:
            self._replace_by_raw_logprobs(sampled_tokens, raw_samples, sequences)
        for row, (sampled_token, is_finite) in enumerate(zip(sampled_tokens, finite, strict=True)):
            sampled_batch.add_row(sampled_token, is_finite, row not in dead_rows
                                  and self._advance_grammar(sequences[row], sampled_token, is_finite))

    def _mask_by_grammars(self, logits: Tensor, sequences: list[Sequence]) -> set[int]:
        """Mask tokens that do not fit the grammars; return the rows whose grammar allows no token."""
        if self._grammars is None or not any(sequence.grammar_id for sequence in sequences):
            return set()
        return self._grammars.mask_logits(logits, sequences)

    def _advance_grammar(self, sequence: Sequence, sampled_token: SampledToken, is_finite: bool) -> bool:
        if self._grammars is None or not sequence.grammar_id or not is_finite:
            return True
        return self._grammars.advance(sequence, sampled_token.token)

    def _sample_tokens(self, logits: Tensor, sequences: list[Sequence]) -> list[SampledToken]:
        logprobs, sampling_params = (compute_log_softmax(logits, self._logprob_buffer),
                                     [sequence.sampling for sequence in sequences])
        if not any(params.temperature for params in sampling_params):
            return self._sample_greedy(logits, logprobs, [sampling.top_n_tokens for sampling in sampling_params])
        uniforms = draw_uniforms([sequence.sampling_key for sequence in sequences],
                                        [len(sequence.tokens) for sequence in sequences])
        return self._sample_from_candidates(logits, logprobs, sampling_params, uniforms)

    def _sample_greedy(self, logits: Tensor, logprobs: Tensor, top_counts: list[int]) -> list[SampledToken]:
        if any(top_counts):
            sampling_params = [SamplingParams(top_n_tokens=count) for count in top_counts]
            return self._sample_from_candidates(logits, logprobs, sampling_params,
                                                torch.zeros(len(top_counts), dtype=torch.float64))
        best_tokens = self._candidate_finder.find_best(logits)
        return list(map(SampledToken, best_tokens.tolist(), gather_by_id(logprobs, best_tokens)))

    def _sample_from_candidates(self, logits: Tensor, logprobs: Tensor, sampling_params: list[SamplingParams],
                                uniforms: Tensor) -> list[SampledToken]:
        """Choose from few candidates; where those are not enough from many, and then from the whole vocabulary."""
        sampled_tokens, decided = sample_from_candidates(
            self._candidate_finder.find_candidates(logits, logprobs, NUM_FEW_CANDIDATES), sampling_params,
            uniforms)
        for row in (row for row, is_decided in enumerate(decided) if not is_decided):
            row_slice = slice(row, row + 1)  # alone: which other rows are not decided must not matter
            (sampled_tokens[row],), (is_enough,) = sample_from_candidates(
                self._candidate_finder.find_candidates(logits[row_slice], logprobs[row_slice], NUM_MANY_CANDIDATES),
                sampling_params[row_slice], uniforms[row_slice])
            if not is_enough:
                (sampled_tokens[row],), _ = sample_from_candidates(sort_whole_vocabulary(logits[row], logprobs[row]),
                                                                   sampling_params[row_slice],
                                                                   uniforms[row_slice])
        return sampled_tokens

    def _sample_raw_greedy(self, logits: Tensor, sequences: list[Sequence]) -> list[SampledToken]:
        """Return the best tokens by the raw logits, and keep the raw logprobs for `_replace_by_raw_logprobs`."""
        top_counts = [sequence.sampling.top_n_tokens if needs_raw_logprobs(sequence) else 0 for sequence in sequences]
        return self._sample_greedy(logits, compute_log_softmax(logits, self._raw_logprob_buffer), top_counts)

    def _replace_by_raw_logprobs(self, sampled_tokens: list[SampledToken], raw_samples: list[SampledToken],
                                 sequences: list[Sequence]) -> None:
        tokens = torch.tensor([sampled_token.token for sampled_token in sampled_tokens],
                              device=self._raw_logprob_buffer.device)
        logprobs = gather_by_id(self._raw_logprob_buffer[:len(tokens)], tokens)
        for sampled_token, logprob, raw_sample, sequence in zip(sampled_tokens, logprobs, raw_samples, sequences,
                                                                strict=True):
            if needs_raw_logprobs(sequence):
                sampled_token.logprob, sampled_token.top_tokens, sampled_token.top_logprobs = (
                    logprob, raw_sample.top_tokens, raw_sample.top_logprobs)


def needs_raw_logprobs(sequence: Sequence) -> bool:
    """Whether the sequence wants raw logprobs, of logits that are about to change."""
    sampling = sequence.sampling
    changed = needs_processing(sequence) or sequence.grammar_id or sampling.temperature not in {0.0, 1.0}
    return sampling.raw_logprobs and bool(changed)


def apply_temperatures(logits: Tensor, temperatures: list[float]) -> None:
    divisors = list(map(compute_logit_divisor, temperatures))
    if any(value != 1.0 for value in divisors):
        logits /= torch.tensor(divisors, device=logits.device)[:, None]


def compute_logit_divisor(temperature: float) -> float:
    """Return the divisor of a row's logits; 1 keeps their bits."""
    return max(temperature, MIN_TEMPERATURE) if temperature else 1.0


def compute_log_softmax(logits: Tensor, out_buffer: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, out=out_buffer[:len(logits)])


def gather_by_id(values: Tensor, ids: Tensor) -> list[float]:
    """Return the value of each row at its id."""
    gathered: list[float] = values.gather(-1, ids[:, None])[:, 0].tolist()
    return gathered
