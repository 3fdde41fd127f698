"""The model runner: from a step of the ledger to the tokens of every sequence, or its failure.

Model, attention, sampling and the group of ranks meet here. All ranks run the same steps; rank 0 alone samples, and
broadcasts the tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import torch
from torch import Tensor

from shard.adapters.routing import NONE, Bearers, Run
from shard.attention.backend import Attention
from shard.attention.inputs import Inputs, build
from shard.attention.kv_cache import Cache
from shard.parallel.group import Group
from shard.pb import shard_pb2 as pb
from shard.runner.cuda_graphs import Begun, Replays
from shard.sampling.sampler import Chosen, Sampler
from shard.state.results import PromptPart, Said
from shard.state.sequence import Sequence
from shard.state.transaction import Chunk, Step

PROMPT_PIECE = 64  # rows of logits that are held at once for prompt logprobs
FAILURES = {-pb.NON_FINITE: pb.NON_FINITE, -pb.GRAMMAR: pb.GRAMMAR}  # by the code broadcast instead of a token


class Model(Protocol):
    """One rank's part of a model."""

    def hidden(self, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor: ...  # [tokens, hidden_size]
    def logits(self, hidden: Tensor) -> Tensor | None: ...  # [rows, vocabulary] on rank 0, None elsewhere


@dataclass(frozen=True, slots=True)
class Outcome:
    said: dict[int, Said]  # by sequence; on rank 0 with logprobs
    prompts: dict[int, PromptPart]
    failures: dict[int, pb.Failure]


class Runner:
    """Model runner of one rank."""

    def __init__(self, model: Model, attention: Attention, sampler: Sampler, group: Group, bearers: Bearers, *,
                 device: torch.device) -> None:
        """Create the runner; the model's linears read from `bearers` which adapter each row uses."""
        self.model = model
        self._attention = attention
        self._sampler = sampler
        self._group = group
        self._bearers = bearers
        self._device = device
        self.replay(None)

    def replay(self, replays: Replays | None) -> None:
        """Use these captured steps from now on wherever they fit; None uses none."""
        self._replays = replays

    @torch.inference_mode()
    def run(self, step: Step, cache: Cache) -> Outcome:
        made = None if self._replays is None else self._replays.run(step, cache)
        hidden, logits = self._launched(step, cache) if made is None else (made.hidden, lambda: made.logits)
        failed = non_finite(step, hidden)
        for sequence, start, end in written(step):
            if sequence.id in failed:
                cache.zero(blocks_between(sequence, start, end, cache.block_size))
        prompts = {chunk.sequence.id: self._prompt_logprobs(chunk, rows, hidden)
                   for chunk, rows in chunk_rows(step) if asks_for_prompt(chunk) and chunk.sequence.id not in failed}
        failed |= self._without_number(prompts)
        said, silent = self._say(step.yielding, logits()) if step.yielding else ({}, {})
        failures = silent | dict.fromkeys(sorted(failed), pb.NON_FINITE)
        prompts = {number: part for number, part in prompts.items() if number not in failures}
        return Outcome({number: word for number, word in said.items() if number not in failures}, prompts, failures)

    def begin(self, step: Step, cache: Cache, behind: Begun | None) -> Begun | None:
        """Begin a step that chooses its tokens on the device, while the step `behind` may be under way. Return None if
        that is not possible."""
        return None if self._replays is None else self._replays.begin(step, cache, behind)

    def _launched(self, step: Step, cache: Cache) -> tuple[Tensor, Callable[[], Tensor | None]]:
        """Run the model; return hidden states of all tokens, and a function for the logits of yielding sequences."""
        inputs = build(step, cache, self._attention, self._device)
        with self._bearers.rows(token_runs(step, len(inputs.tokens))):
            hidden = self.model.hidden(inputs, cache, self._attention)  # [tokens, hidden_size]
        return hidden, lambda: self._logits(step.yielding, hidden[inputs.sampled])

    def _logits(self, sequences: list[Sequence], hidden: Tensor) -> Tensor | None:
        with self._bearers.rows([Run(sequence.adapter, 1) for sequence in sequences]):
            return self.model.logits(hidden)  # [sequences, vocabulary]

    def _say(self, sequences: list[Sequence],
             logits: Tensor | None) -> tuple[dict[int, Said], dict[int, pb.Failure]]:
        """Choose tokens. Return those of each sequence, and the failures of the others."""
        if logits is not None:
            chosen = self._sampler.choose(logits, sequences)
            told = list(map(token_or_failure, chosen.tokens, chosen.finite, chosen.fitting))
            if self._group.size > 1:
                self._group.broadcast(torch.tensor(told, device=self._device))
            words = [said(chosen, row) for row in range(len(sequences))]
        else:
            told = self._group.broadcast(torch.empty(len(sequences), dtype=torch.int64, device=self._device)).tolist()
            words = [Said([token], []) for token in told]
        rows = list(zip(sequences, told, words, strict=True))
        return ({sequence.id: word for sequence, token, word in rows if token >= 0},
                {sequence.id: FAILURES[token] for sequence, token, _ in rows if token < 0})

    def _without_number(self, prompts: dict[int, PromptPart]) -> set[int]:
        """Return the sequences with a non-finite prompt logprob. Only rank 0 has the logprobs; it broadcasts which
        sequences these are, since all ranks must know."""
        if not prompts:
            return set()
        fine = [int(all(map(isfinite, part.logprobs))) for part in prompts.values()]
        told = self._group.broadcast(torch.tensor(fine, device=self._device)).tolist()
        return {number for number, is_fine in zip(list(prompts), told, strict=True) if not is_fine}

    def _prompt_logprobs(self, chunk: Chunk, rows: range, hidden: Tensor) -> PromptPart:
        """Return logprobs of the prompt tokens that follow each token of the chunk, in pieces that bound the memory for
        logits."""
        sequence = chunk.sequence
        targets = sequence.tokens[chunk.start + 1:min(chunk.end + 1, sequence.num_prompt_tokens)]
        logprobs: list[float] = []
        for first in range(0, len(targets), PROMPT_PIECE):
            piece = targets[first:first + PROMPT_PIECE]
            begin = rows.start + first
            with self._bearers.rows([Run(sequence.adapter, len(piece))]):
                logits = self.model.logits(hidden[begin:begin + len(piece)])
            if logits is not None:
                logprobs += self._sampler.prompt_logprobs(logits, piece)
        return PromptPart(chunk.start + 1, logprobs)


def token_or_failure(token: int, finite: bool, fitting: bool) -> int:
    """Encode a token, or a failure, as rank 0 broadcasts it."""
    if not fitting:
        return -pb.GRAMMAR
    return token if finite else -pb.NON_FINITE


def said(chosen: Chosen, row: int) -> Said:
    logprob, best = chosen.logprobs[row], chosen.top_tokens[row]
    tops = ([best], [chosen.top_logprobs[row]]) if best else ([], [])
    return Said([chosen.tokens[row]], [logprob], *tops)


def asks_for_prompt(chunk: Chunk) -> bool:
    return chunk.sequence.prompt_logprobs and chunk.start + 1 < chunk.sequence.num_prompt_tokens


def token_runs(step: Step, num_tokens: int) -> list[Run]:
    """Return the adapters of the rows on the token axis; a step of one token has a dummy token beside it."""
    runs = [Run(sequence.adapter, 1) for sequence in step.decodes]
    runs += [Run(chunk.sequence.adapter, chunk.length) for chunk in step.chunks]
    beside = num_tokens - sum(run.length for run in runs)
    return [*runs, Run(NONE, beside)] if beside else runs


def chunk_rows(step: Step) -> list[tuple[Chunk, range]]:
    """Return the rows of every chunk on the token axis: behind the decodes, one after the other."""
    placed, row = [], len(step.decodes)
    for chunk in step.chunks:
        placed.append((chunk, range(row, row + chunk.length)))
        row += chunk.length
    return placed


def written(step: Step) -> list[tuple[Sequence, int, int]]:
    """Return the sequences of the step with the start and end of the positions that each wrote to the cache."""
    return [(sequence, len(sequence.tokens) - 1, len(sequence.tokens)) for sequence in step.decodes] + [
        (chunk.sequence, chunk.start, chunk.end) for chunk in step.chunks]


def non_finite(step: Step, hidden: Tensor) -> set[int]:
    """Return the sequences with non-finite hidden states. One sum over all is enough to find that there are none."""
    if bool(hidden.sum(dtype=torch.float32).isfinite()):
        return set()
    fine = hidden.isfinite().all(dim=-1).tolist()
    failed = {sequence.id for row, sequence in enumerate(step.decodes) if not fine[row]}
    return failed | {chunk.sequence.id for chunk, rows in chunk_rows(step) if not all(fine[rows.start:rows.stop])}


def blocks_between(sequence: Sequence, start: int, end: int, block_size: int) -> list[int]:
    return sequence.blocks[start // block_size:-(-end // block_size)]
