"""The model runner: from a step of the shard's state to the tokens of every sequence, or its failure.

Model, attention, sampling and the group of ranks meet here. All ranks run the same steps; rank 0 alone samples, and
broadcasts the tokens: docs/exactness.md, "Collectives of a step".
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.forward_inputs import build_forward_inputs
from shard.attention.kv_cache import KVCache
from shard.lora.routing import NO_ADAPTER, AdapterRouting, AdapterRowSpan
from shard.models.decoder import RunnableModel
from shard.parallel.group import RankGroup
from shard.pb import shard_pb2 as pb
from shard.runner.cuda_graphs import CudaGraphRunner, InFlightReplay
from shard.sampling.sampler import Sampler, SamplerOutput
from shard.state.result_encoding import PromptLogprobs, SequenceOutput
from shard.state.sequence import Sequence
from shard.state.step import PrefillChunk, Step

MAX_PROMPT_LOGIT_ROWS = 64  # rows of logits that are held at once for prompt logprobs
# failure by the negative code that rank 0 broadcasts in place of a token
FAILURE_BY_CODE = {-pb.NON_FINITE: pb.NON_FINITE, -pb.GRAMMAR: pb.GRAMMAR}


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Tokens, prompt logprobs and failures of a step, by sequence id."""

    by_sequence: dict[int, SequenceOutput]  # of sampled sequences that did not fail; on rank 0 with logprobs
    prompt_logprobs: dict[int, PromptLogprobs]
    failures: dict[int, pb.Failure]

    @property
    def new_tokens(self) -> dict[int, list[int]]:
        return {sequence_id: output.tokens for sequence_id, output in self.by_sequence.items()}


class ModelRunner:
    """Model runner of one rank."""

    def __init__(self, model: RunnableModel, attention: AttentionBackend, sampler: Sampler, group: RankGroup,
                 adapter_routing: AdapterRouting, *, device: torch.device) -> None:
        """Create the runner; the model's linears read from `adapter_routing` which adapter each row uses."""
        self.model = model
        self._attention = attention
        self._sampler = sampler
        self._group = group
        self._adapter_routing = adapter_routing
        self._device = device
        self.set_cuda_graph_runner(None)

    def set_cuda_graph_runner(self, cuda_graph_runner: CudaGraphRunner | None) -> None:
        """Use these captured steps from now on wherever they fit; None uses none."""
        self._cuda_graph_runner = cuda_graph_runner

    @torch.inference_mode()
    def run(self, step: Step, cache: KVCache) -> StepOutputs:
        """Run one step: forward pass, checks, prompt logprobs, tokens."""
        graph_outputs = None if self._cuda_graph_runner is None else self._cuda_graph_runner.run(step, cache)
        hidden_states, logits = self._forward(step, cache) if graph_outputs is None else (graph_outputs.hidden_states,
                                                                                          lambda: graph_outputs.logits)
        failed_ids = find_non_finite_sequences(step, hidden_states)
        for sequence, start, end in list_written_positions(step):
            if sequence.id in failed_ids:  # docs/exactness.md, "No NaN stays in the cache"
                cache.zero_blocks(find_blocks_between(sequence, start, end, cache.block_size))
        prompt_logprobs = {chunk.sequence.id: self._compute_prompt_logprobs(chunk, rows, hidden_states)
                           for chunk, rows in find_chunk_rows(step)
                           if needs_prompt_logprobs(chunk) and chunk.sequence.id not in failed_ids}
        failed_ids |= self._find_non_finite_prompts(prompt_logprobs)
        outputs, sampling_failures = (self._sample_tokens(step.sampled_sequences, logits())
                                      if step.sampled_sequences else ({}, {}))
        failures = sampling_failures | dict.fromkeys(sorted(failed_ids), pb.NON_FINITE)
        return StepOutputs(
            {sequence_id: output for sequence_id, output in outputs.items() if sequence_id not in failures},
            {sequence_id: part for sequence_id, part in prompt_logprobs.items() if sequence_id not in failures},
            failures)

    def begin_step(self, step: Step, cache: KVCache, previous: InFlightReplay | None) -> InFlightReplay | None:
        """Begin a step that chooses its tokens on the device, while the step `previous` may be under way. Return None
        if that is not possible."""
        return None if self._cuda_graph_runner is None else self._cuda_graph_runner.begin_step(step, cache, previous)

    def _forward(self, step: Step, cache: KVCache) -> tuple[Tensor, Callable[[], Tensor | None]]:
        """Run the model; return hidden states of all tokens, and a function for the logits of sampled sequences."""
        inputs = build_forward_inputs(step, cache, self._attention, self._device)
        self._adapter_routing.set_rows(make_adapter_runs(step, len(inputs.tokens)))
        hidden_states = self.model.forward(inputs, cache, self._attention)  # [tokens, hidden_size]
        return hidden_states, lambda: self._compute_logits(step.sampled_sequences, hidden_states[inputs.sampled_rows])

    def _compute_logits(self, sequences: list[Sequence], hidden_states: Tensor) -> Tensor | None:
        self._adapter_routing.set_rows([AdapterRowSpan(sequence.adapter_id, 1) for sequence in sequences])
        return self.model.compute_logits(hidden_states)  # [sequences, vocabulary]

    def _sample_tokens(self, sequences: list[Sequence],
                       logits: Tensor | None) -> tuple[dict[int, SequenceOutput], dict[int, pb.Failure]]:
        """Choose tokens. Return those of each sequence, and the failures of the others."""
        if logits is not None:
            sampled = self._sampler.sample(logits, sequences)
            codes = list(map(encode_token_or_failure, sampled.tokens, sampled.is_finite, sampled.fits_grammar))
            if self._group.size > 1:
                self._group.broadcast(torch.tensor(codes, device=self._device))
            outputs = [make_sequence_output(sampled, row) for row in range(len(sequences))]
        else:
            codes = self._group.broadcast(torch.empty(len(sequences), dtype=torch.int64, device=self._device)).tolist()
            outputs = [SequenceOutput([token], []) for token in codes]
        rows = list(zip(sequences, codes, outputs, strict=True))
        return ({sequence.id: output for sequence, token, output in rows if token >= 0},
                {sequence.id: FAILURE_BY_CODE[token] for sequence, token, _ in rows if token < 0})

    def _find_non_finite_prompts(self, prompt_logprobs: dict[int, PromptLogprobs]) -> set[int]:
        """Return the sequences with a non-finite prompt logprob. Only rank 0 has the logprobs; it broadcasts which
        sequences these are, since all ranks must know."""
        if not prompt_logprobs:
            return set()
        finite_flags = [int(all(map(isfinite, part.logprobs))) for part in prompt_logprobs.values()]
        broadcast_flags = self._group.broadcast(torch.tensor(finite_flags, device=self._device)).tolist()
        return {sequence_id for sequence_id, is_finite in zip(list(prompt_logprobs), broadcast_flags, strict=True)
                if not is_finite}

    def _compute_prompt_logprobs(self, chunk: PrefillChunk, rows: range, hidden_states: Tensor) -> PromptLogprobs:
        """Return logprobs of the prompt tokens that follow each token of the chunk, in pieces that bound the memory for
        logits."""
        sequence = chunk.sequence
        targets = sequence.tokens[chunk.start + 1:min(chunk.end + 1, sequence.num_prompt_tokens)]
        logprobs: list[float] = []
        for first in range(0, len(targets), MAX_PROMPT_LOGIT_ROWS):
            target_tokens = targets[first:first + MAX_PROMPT_LOGIT_ROWS]
            begin = rows.start + first
            self._adapter_routing.set_rows([AdapterRowSpan(sequence.adapter_id, len(target_tokens))])
            logits = self.model.compute_logits(hidden_states[begin:begin + len(target_tokens)])
            if logits is not None:
                logprobs += self._sampler.compute_prompt_logprobs(logits, target_tokens)
        return PromptLogprobs(chunk.start + 1, logprobs)


def encode_token_or_failure(token: int, is_finite: bool, fits_grammar: bool) -> int:
    """Encode a token, or a failure, as rank 0 broadcasts it."""
    if not fits_grammar:
        return -pb.GRAMMAR
    return token if is_finite else -pb.NON_FINITE


def make_sequence_output(sampled: SamplerOutput, row: int) -> SequenceOutput:
    logprob, top_tokens = sampled.logprobs[row], sampled.top_tokens[row]
    tops = ([top_tokens], [sampled.top_logprobs[row]]) if top_tokens else ([], [])
    return SequenceOutput([sampled.tokens[row]], [logprob], *tops)


def needs_prompt_logprobs(chunk: PrefillChunk) -> bool:
    return chunk.sequence.wants_prompt_logprobs and chunk.start + 1 < chunk.sequence.num_prompt_tokens


def make_adapter_runs(step: Step, num_tokens: int) -> list[AdapterRowSpan]:
    """Return the adapters of the rows on the token axis, the dummy row of `build_forward_inputs` included."""
    runs = [AdapterRowSpan(sequence.adapter_id, 1) for sequence in step.decodes]
    runs += [AdapterRowSpan(chunk.sequence.adapter_id, chunk.length) for chunk in step.chunks]
    num_dummies = num_tokens - sum(run.length for run in runs)
    return [*runs, AdapterRowSpan(NO_ADAPTER, num_dummies)] if num_dummies else runs


def find_chunk_rows(step: Step) -> list[tuple[PrefillChunk, range]]:
    """Return all rows of every chunk on the token axis: behind the decodes, one after the other. (`iter_token_spans`
    gives the positions and blocks, too, and `list_sampled_rows` the last rows alone.)"""
    chunk_rows, row = [], len(step.decodes)
    for chunk in step.chunks:
        chunk_rows.append((chunk, range(row, row + chunk.length)))
        row += chunk.length
    return chunk_rows


def list_written_positions(step: Step) -> list[tuple[Sequence, int, int]]:
    """Return the sequences of the step with the start and end of the positions that each wrote to the cache."""
    return [(sequence, len(sequence.tokens) - 1, len(sequence.tokens)) for sequence in step.decodes] + [
        (chunk.sequence, chunk.start, chunk.end) for chunk in step.chunks]


def find_non_finite_sequences(step: Step, hidden_states: Tensor) -> set[int]:
    """Return the sequences with non-finite hidden states. One sum over all is enough to find that there are none."""
    if bool(hidden_states.sum(dtype=torch.float32).isfinite()):
        return set()
    is_finite = hidden_states.isfinite().all(dim=-1).tolist()
    failed = {sequence.id for row, sequence in enumerate(step.decodes) if not is_finite[row]}
    return failed | {chunk.sequence.id for chunk, rows in find_chunk_rows(step)
                     if not all(is_finite[rows.start:rows.stop])}


def find_blocks_between(sequence: Sequence, start: int, end: int, block_size: int) -> list[int]:
    return sequence.blocks[start // block_size:-(-end // block_size)]
