"""The sampler: from logits to tokens, logprobs and the best candidates, for all rows of a step.

Rows are sampled by docs/concepts/exactness.md, "Each row is sampled by itself". The order is penalties and masks
(`logits_processors.py`), grammars (`grammar.py`), temperature, the best candidates (`best_candidates.py`), filters
(`filters.py`), draw and logprobs (`token_selection.py`). Temperature 0 takes the best candidate and ignores filters.
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
from shard.sampling.token_selection import SampledToken, draw_uniforms, sample_from_candidates
from shard.state.sequence import SamplingParams, Sequence

MAX_ROWS_AT_ONCE = 32  # sampled at a time, which bounds the memory for copies of logits
UNSCALED_TEMPERATURES = frozenset({0.0, 1.0})  # which keep the bits of logits
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
        output = SamplerOutput()
        for start in range(0, len(sequences), MAX_ROWS_AT_ONCE):
            rows = slice(start, start + MAX_ROWS_AT_ONCE)
            self._sample_rows(logits[rows], sequences[rows], output)
        return output

    def compute_prompt_logprobs(self, logits: Tensor, target_tokens: list[int], num_top_tokens: int = 0
                                ) -> tuple[list[float], list[list[int]], list[list[float]]]:
        """Return the logprob of each row's target token, by the unchanged logits [rows, vocabulary], and the tokens and
        logprobs of each row's `num_top_tokens` best candidates; empty lists if that is 0."""
        logprobs: list[float] = []
        samples: list[SampledToken] = []
        for start in range(0, len(target_tokens), MAX_ROWS_AT_ONCE):
            rows = slice(start, start + MAX_ROWS_AT_ONCE)
            ids = torch.tensor(target_tokens[rows], device=logits.device)
            row_logprobs = torch.log_softmax(logits[rows], -1, out=self._logprob_buffer[:len(ids)])
            logprobs += gather_by_id(row_logprobs, ids)
            if num_top_tokens:
                samples += self._sample_from_candidates(
                    logits[rows], row_logprobs, [SamplingParams(top_n_tokens=num_top_tokens)] * len(ids),
                    torch.zeros(len(ids)))
        return logprobs, [sample.top_tokens for sample in samples], [sample.top_logprobs for sample in samples]

    def _sample_rows(self, logits: Tensor, sequences: list[Sequence], output: SamplerOutput) -> None:
        sums = logits.sum(-1).tolist()  # not finite where a logit is not
        temperatures: list[float] = []
        raw_rows: list[int] = []
        has_grammar = needs_candidates = False
        for row, sequence in enumerate(sequences):
            sampling = sequence.sampling
            temperatures.append(sampling.temperature)
            has_grammar = has_grammar or bool(sequence.grammar_id)
            needs_candidates = needs_candidates or bool(sampling.temperature or sampling.top_n_tokens)
            if sampling.raw_logprobs and changes_logits(sequence):
                raw_rows.append(row)
        raw_samples = self._sample_raw_greedy(logits, sequences, raw_rows) if raw_rows else None
        process_logits(logits, sequences)
        grammars = self._grammars if has_grammar else None
        dead_rows = set() if grammars is None else grammars.mask_logits(logits, sequences)
        if not UNSCALED_TEMPERATURES.issuperset(temperatures):
            logits /= torch.tensor(list(map(compute_logit_divisor, temperatures)), device=logits.device)[:, None]
        logprobs = torch.log_softmax(logits, -1, out=self._logprob_buffer[:len(logits)])
        if needs_candidates:
            sampled_tokens = self._sample_from_candidates(logits, logprobs, [s.sampling for s in sequences],
                                                          draw_uniforms([s.sampling_key for s in sequences],
                                                                        [len(s.tokens) for s in sequences]))
        else:
            best_tokens = self._candidate_finder.find_best(logits)
            sampled_tokens = list(map(SampledToken, best_tokens.tolist(), gather_by_id(logprobs, best_tokens)))
        raw_logprobs: list[float] = []
        if raw_rows:
            tokens = torch.tensor([sampled_token.token for sampled_token in sampled_tokens], device=logits.device)
            raw_logprobs = gather_by_id(self._raw_logprob_buffer[:len(tokens)], tokens)
        for row, (sequence, sampled_token) in enumerate(zip(sequences, sampled_tokens, strict=True)):
            # If no token is left to choose from, the logprob is not finite.
            is_finite, fits_grammar = isfinite(sums[row]) and isfinite(sampled_token.logprob), row not in dead_rows
            if grammars is not None and sequence.grammar_id and is_finite and fits_grammar:
                fits_grammar = grammars.advance(sequence, sampled_token.token)
            is_raw = row in raw_rows
            tops = raw_samples[row] if is_raw and raw_samples is not None else sampled_token
            output.tokens.append(sampled_token.token)
            output.logprobs.append(raw_logprobs[row] if is_raw else sampled_token.logprob)
            output.top_tokens.append(tops.top_tokens)
            output.top_logprobs.append(tops.top_logprobs)
            output.is_finite.append(is_finite)
            output.fits_grammar.append(fits_grammar)

    def _sample_from_candidates(self, logits: Tensor, logprobs: Tensor, sampling_params: list[SamplingParams],
                                uniforms: Tensor) -> list[SampledToken]:
        """Choose from few candidates; where those are not enough from many, and then from the whole vocabulary."""
        sampled_tokens, decided = sample_from_candidates(
            self._candidate_finder.find_candidates(logits, logprobs, NUM_FEW_CANDIDATES), sampling_params, uniforms)
        for row in (row for row, is_decided in enumerate(decided) if not is_decided):
            rows = slice(row, row + 1)  # alone: which other rows are not decided must not matter
            (sampled_tokens[row],), (is_enough,) = sample_from_candidates(
                self._candidate_finder.find_candidates(logits[rows], logprobs[rows], NUM_MANY_CANDIDATES),
                sampling_params[rows], uniforms[rows])
            if not is_enough:
                (sampled_tokens[row],), _ = sample_from_candidates(sort_whole_vocabulary(logits[row], logprobs[row]),
                                                                   sampling_params[rows], uniforms[rows])
        return sampled_tokens

    def _sample_raw_greedy(self, logits: Tensor, sequences: list[Sequence],
                           raw_rows: list[int]) -> list[SampledToken] | None:
        """Keep the raw logprobs in their buffer. Return samples with the best tokens by the raw logits, or
        None if no row wants these."""
        logprobs = torch.log_softmax(logits, -1, out=self._raw_logprob_buffer[:len(logits)])
        top_counts = [sequence.sampling.top_n_tokens if row in raw_rows else 0
                      for row, sequence in enumerate(sequences)]
        return self._sample_from_candidates(
            logits, logprobs, [SamplingParams(top_n_tokens=count) for count in top_counts],
            torch.zeros(len(sequences))) if any(top_counts) else None


def changes_logits(sequence: Sequence) -> bool:
    """Whether the sequence is sampled by other logits than the raw ones."""
    return bool(sequence.grammar_id or sequence.sampling.temperature not in UNSCALED_TEMPERATURES
                or needs_processing(sequence))


def compute_logit_divisor(temperature: float) -> float:
    """Return the divisor of a row's logits; 1 keeps their bits."""
    return max(temperature, MIN_TEMPERATURE) if temperature else 1.0


def gather_by_id(values: Tensor, ids: Tensor) -> list[float]:
    """Return the value of each row at its id."""
    gathered: list[float] = values.gather(-1, ids[:, None])[:, 0].tolist()
    return gathered
