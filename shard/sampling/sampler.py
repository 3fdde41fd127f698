"""The sampler: from logits to tokens, logprobs and the best candidates, for all rows of a step.

Rows are sampled by docs/concepts/exactness.md, "Each row is sampled by itself". The order is penalties and masks
(`logits_processors.py`), grammars (`grammar.py`), temperature, what turns logits into logprobs
(`logits_with_normalizers.py`), the best candidates (`best_candidates.py`), filters (`filters.py`), draw and logprobs
(`token_selection.py`). Temperature 0 takes the best token and ignores filters.
"""

from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from shard.sampling.best_candidates import (
    LARGER_CANDIDATE_COUNTS,
    NUM_FEW_CANDIDATES,
    find_candidates,
    sort_whole_vocabulary,
)
from shard.sampling.grammar import GrammarRegistry
from shard.sampling.logits_processors import needs_processing, process_logits
from shard.sampling.logits_with_normalizers import LogitsWithNormalizers, compute_normalizers
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
        # What torch writes to. Kept, since allocating this much memory takes longer than filling it.
        self._buffer = torch.empty(MAX_ROWS_AT_ONCE, vocabulary_size, device=device)

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
            normalized = self._normalize(logits[rows])
            logprobs += normalized.gather_logprobs(ids).tolist()
            if num_top_tokens:
                samples += list_top_tokens(normalized, [num_top_tokens] * len(ids))
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
        raw_logits = self._normalize(logits[raw_rows]) if raw_rows else None  # of copies of the rows
        process_logits(logits, sequences)
        grammars = self._grammars if has_grammar else None
        dead_rows = set() if grammars is None else grammars.mask_logits(logits, sequences)
        if not UNSCALED_TEMPERATURES.issuperset(temperatures):
            logits /= torch.tensor(list(map(compute_logit_divisor, temperatures)), device=logits.device)[:, None]
        normalized = self._normalize(logits)
        if needs_candidates:
            sampled_tokens = sample_normalized(normalized, [s.sampling for s in sequences],
                                               draw_uniforms([s.sampling_key for s in sequences],
                                                             [len(s.tokens) for s in sequences]))
        else:
            best_tokens = normalized.best_tokens
            sampled_tokens = list(map(SampledToken, best_tokens.tolist(),
                                      normalized.gather_logprobs(best_tokens).tolist()))
        # If no token is left to choose from, the logprob is not finite.
        are_finite = [isfinite(total) and isfinite(sampled_token.logprob)
                      for total, sampled_token in zip(sums, sampled_tokens, strict=True)]
        if raw_logits is not None:
            replace_with_raw_logprobs(raw_logits, [sampled_tokens[row] for row in raw_rows],
                                      [sequences[row].sampling.top_n_tokens for row in raw_rows])
        for row, (sequence, sampled_token) in enumerate(zip(sequences, sampled_tokens, strict=True)):
            fits_grammar = row not in dead_rows
            if grammars is not None and sequence.grammar_id and are_finite[row] and fits_grammar:
                fits_grammar = grammars.advance(sequence, sampled_token.token)
            output.tokens.append(sampled_token.token)
            output.logprobs.append(sampled_token.logprob)
            output.top_tokens.append(sampled_token.top_tokens)
            output.top_logprobs.append(sampled_token.top_logprobs)
            output.fits_grammar.append(fits_grammar)
        output.is_finite += are_finite

    def _normalize(self, logits: Tensor) -> LogitsWithNormalizers:
        return compute_normalizers(logits, self._buffer[:len(logits)])


def sample_normalized(normalized: LogitsWithNormalizers, sampling_params: list[SamplingParams],
                      uniforms: Tensor) -> list[SampledToken]:
    """Choose from few candidates; where those are not enough from more, and at last from the whole vocabulary."""
    sampled_tokens, decided = sample_from_candidates(find_candidates(normalized, NUM_FEW_CANDIDATES), sampling_params,
                                                     uniforms)
    for row, is_decided in enumerate(decided):
        if not is_decided:  # alone: which other rows are not decided must not matter
            rows = slice(row, row + 1)
            sampled_tokens[row] = sample_single_row(normalized.select_rows(rows), sampling_params[rows], uniforms[rows])
    return sampled_tokens


def sample_single_row(normalized: LogitsWithNormalizers, sampling_params: list[SamplingParams],
                      uniforms: Tensor) -> SampledToken:
    for num_candidates in LARGER_CANDIDATE_COUNTS:
        (sampled_token,), (is_decided,) = sample_from_candidates(find_candidates(normalized, num_candidates),
                                                                 sampling_params, uniforms)
        if is_decided:
            return sampled_token
    (sampled_token,), _ = sample_from_candidates(sort_whole_vocabulary(normalized), sampling_params, uniforms)
    return sampled_token


def list_top_tokens(normalized: LogitsWithNormalizers, counts: list[int]) -> list[SampledToken]:
    """Return the best token of each row, with its `counts` best tokens."""
    return sample_normalized(normalized, [SamplingParams(top_n_tokens=count) for count in counts],
                             torch.zeros(len(counts)))


def replace_with_raw_logprobs(raw_logits: LogitsWithNormalizers, sampled_tokens: list[SampledToken],
                              top_counts: list[int]) -> None:
    """Replace the logprobs of sampled tokens, and the best candidates, by those of the raw logits."""
    tokens = torch.tensor([sampled_token.token for sampled_token in sampled_tokens],
                          device=raw_logits.best_tokens.device)
    tops = (list_top_tokens(raw_logits, top_counts) if any(top_counts)
            else [SampledToken(0, 0.0) for _ in top_counts])
    for sampled_token, logprob, top in zip(sampled_tokens, raw_logits.gather_logprobs(tokens).tolist(), tops,
                                           strict=True):
        sampled_token.logprob = logprob
        sampled_token.top_tokens, sampled_token.top_logprobs = top.top_tokens, top.top_logprobs


def changes_logits(sequence: Sequence) -> bool:
    """Whether the sequence is sampled by other logits than the raw ones."""
    return bool(sequence.grammar_id or sequence.sampling.temperature not in UNSCALED_TEMPERATURES
                or needs_processing(sequence))


def compute_logit_divisor(temperature: float) -> float:
    """Return the divisor of a row's logits; 1 keeps their bits."""
    return max(temperature, MIN_TEMPERATURE) if temperature else 1.0
