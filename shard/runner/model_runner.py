"""The model runner: from a step of the shard's state to the tokens of every sequence, or its failure. All ranks run the
same steps; rank 0 alone samples, and broadcasts the tokens: docs/concepts/exactness.md, "Collectives of a step".

Decodes whose tokens a CUDA graph can choose do not come here: `workers/step_overlap.py` begins them with
`CudaGraphRunner.begin_step`, and runs them here again if a row needs a decision of the host. On a CPU `forward` replays
recorded layers (`CpuGraphRunner`).
"""

from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.kv_cache import KVCache, make_int64_tensor
from shard.attention.model_inputs import ModelInputs, make_token_columns
from shard.lora.routing import NO_ADAPTER, AdapterRouting, AdapterRowSpan
from shard.models.decoder import RunnableModel
from shard.parallel.group import RankGroup
from shard.pb import shard_pb2 as pb
from shard.runner.cpu_graphs import CpuGraphRunner
from shard.runner.cuda_graphs import CudaGraphRunner
from shard.sampling.sampler import Sampler
from shard.state.result_encoding import PromptLogprobs, SequenceOutput
from shard.state.sequence import Sequence
from shard.state.step import PrefillChunk, Step, StepLayout, lay_out_step

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


@dataclass(eq=False)
class ModelRunner:
    """Model runner of one rank."""

    model: RunnableModel
    attention: AttentionBackend
    sampler: Sampler
    group: RankGroup
    adapter_routing: AdapterRouting  # from which the model's linears read which adapter each row uses
    device: torch.device
    cuda_graph_runner: CudaGraphRunner | None = None  # captured steps, which are used wherever they fit
    cpu_graph_runner: CpuGraphRunner | None = None  # recorded layers on CPUs, which `forward` replays

    @property
    def graph_recording_seconds(self) -> float:
        """Seconds that steps have taken once, to be recorded."""
        return 0.0 if self.cpu_graph_runner is None else self.cpu_graph_runner.graph_recording_seconds

    @torch.inference_mode()
    def run(self, step: Step, cache: KVCache) -> StepOutputs:
        """Run one step: forward pass, checks, prompt logprobs, tokens."""
        layout = lay_out_step(step)
        graph_outputs = None if self.cuda_graph_runner is None else self.cuda_graph_runner.run(layout, cache)
        if graph_outputs is None:
            inputs, hidden_states = self.forward(layout, cache)
        else:
            hidden_states = graph_outputs.hidden_states
        non_finite_ids = find_non_finite_sequences(layout, hidden_states)
        if not non_finite_ids.isdisjoint(step.drafts):
            drop_drafts(step, layout, non_finite_ids, cache)
            return self.run(step, cache)
        zero_blocks_of_sequences(layout, non_finite_ids, cache)
        prompt_logprobs: dict[int, PromptLogprobs] = {}
        for chunk, span in zip(step.chunks, layout.spans[len(step.decodes):], strict=True):
            if (chunk.sequence.wants_prompt_logprobs and chunk.sequence.id not in non_finite_ids
                and chunk.start + 1 < chunk.sequence.num_prompt_tokens):
                prompt_logprobs[chunk.sequence.id] = self._compute_prompt_logprobs(chunk, span.first_row, hidden_states)
        if prompt_logprobs:
            non_finite_ids |= self._find_non_finite_prompts(prompt_logprobs)
        outputs: dict[int, SequenceOutput] = {}
        failures: dict[int, pb.Failure] = {}
        if layout.sampled_sequences:
            logits = (self._compute_logits(layout, hidden_states[inputs.sampled_rows]) if graph_outputs is None
                      else graph_outputs.logits)
            outputs, failures = self._sample_tokens(layout.sampled_sequences, logits)
            if step.drafts:
                self._verify_drafts(layout, logits, outputs)
        for sequence_id in sorted(non_finite_ids):
            failures[sequence_id] = pb.NON_FINITE
            outputs.pop(sequence_id, None)
        for sequence_id in failures:
            prompt_logprobs.pop(sequence_id, None)
        return StepOutputs(outputs, prompt_logprobs, failures)

    def forward(self, layout: StepLayout, cache: KVCache) -> tuple[ModelInputs, Tensor]:
        """Return the inputs of a forward pass and its hidden states `[tokens, hidden_size]`."""
        adapter_spans = [AdapterRowSpan(sequence.adapter_id, span.length)
                         for sequence, span in zip(layout.sequences, layout.spans, strict=True)]
        self.adapter_routing.set_rows(adapter_spans)
        if self.cpu_graph_runner is not None and (recorded := self.cpu_graph_runner.run(layout, cache)) is not None:
            return recorded
        if layout.num_dummy_rows:
            self.adapter_routing.set_rows([*adapter_spans, AdapterRowSpan(NO_ADAPTER, layout.num_dummy_rows)])
        inputs = build_model_inputs(layout, cache, self.attention, self.device)
        return inputs, self.model.forward(inputs, cache, self.attention)

    def _compute_logits(self, layout: StepLayout, sampled_states: Tensor) -> Tensor | None:
        """Return the logits [sampled rows, vocabulary] on rank 0, None on others."""
        # In a step of single decodes the sampled rows are all rows, and `forward` has set their adapters.
        if layout.num_decodes < len(layout.spans) or layout.num_dummy_rows:
            self.adapter_routing.set_rows([AdapterRowSpan(sequence.adapter_id, 1)
                                            for sequence in layout.iter_sampled()])
        return self.model.compute_logits(sampled_states)

    def _sample_tokens(self, sequences: list[Sequence],
                       logits: Tensor | None) -> tuple[dict[int, SequenceOutput], dict[int, pb.Failure]]:
        """Choose a token for each sequence, by the first rows of the logits. Return them, and the failures of the other
        sequences. Rank 0, which has the logits, broadcasts a token or the negative code of a failure for each."""
        sampled = None if logits is None else self.sampler.sample(logits[:len(sequences)], sequences)
        if sampled is None:
            codes = self.group.broadcast(torch.empty(len(sequences), dtype=torch.int64, device=self.device)).tolist()
        else:
            codes = [-pb.GRAMMAR if not fits_grammar else token if is_finite else -pb.NON_FINITE
                     for token, is_finite, fits_grammar in zip(sampled.tokens, sampled.is_finite, sampled.fits_grammar,
                                                               strict=True)]
            if self.group.size > 1:
                self.group.broadcast(torch.tensor(codes, device=self.device))
        outputs: dict[int, SequenceOutput] = {}
        failures: dict[int, pb.Failure] = {}
        for row, (sequence, code) in enumerate(zip(sequences, codes, strict=True)):
            if code < 0:
                failures[sequence.id] = FAILURE_BY_CODE[code]
            elif sampled is None:
                outputs[sequence.id] = SequenceOutput([code], [])
            elif sampled.top_tokens[row]:
                outputs[sequence.id] = SequenceOutput([code], [sampled.logprobs[row]], [sampled.top_tokens[row]],
                                                      [sampled.top_logprobs[row]])
            else:
                outputs[sequence.id] = SequenceOutput([code], [sampled.logprobs[row]])
        return outputs, failures

    def _verify_drafts(self, layout: StepLayout, logits: Tensor | None, outputs: dict[int, SequenceOutput]) -> None:
        """Sample behind each guess that is the token sampled before it, and add what was sampled to `outputs`.

        A token is sampled by the same logits, the same draw and the same tokens before it as in a step of its own. One
        that fails is left out: the next step samples it again, and it fails there.
        """
        pending = [sequence for sequence in layout.sampled_sequences if sequence.id in layout.drafts]
        lengths = [(sequence, len(sequence.tokens)) for sequence in pending]
        draft_ends = accumulate([len(layout.drafts[sequence.id]) for sequence in pending],
                                initial=len(layout.sampled_sequences))
        # by sequence: the row of the logits behind its first guess
        rows = dict(zip([sequence.id for sequence in pending], draft_ends, strict=False))
        try:
            for index in range(max(map(len, layout.drafts.values()))):
                pending = [sequence for sequence in pending
                           if is_draft_token_accepted(layout.drafts[sequence.id], index, outputs.get(sequence.id),
                                                      sequence)]
                if not pending:
                    break
                for sequence in pending:
                    sequence.tokens.append(layout.drafts[sequence.id][index])
                sampled, _ = self._sample_tokens(
                    pending, None if logits is None else logits[[rows[sequence.id] + index for sequence in pending]])
                for sequence_id, output in sampled.items():
                    outputs[sequence_id].extend(output)
        finally:
            for sequence, length in lengths:
                del sequence.tokens[length:]

    def _find_non_finite_prompts(self, prompt_logprobs: dict[int, PromptLogprobs]) -> set[int]:
        """Return the sequences with a non-finite prompt logprob. Only rank 0 has the logprobs; it broadcasts which
        sequences these are, since all ranks must know."""
        finite_flags = [int(all(map(isfinite, part.logprobs))) for part in prompt_logprobs.values()]
        broadcast_flags = self.group.broadcast(torch.tensor(finite_flags, device=self.device)).tolist()
        return {sequence_id for sequence_id, is_finite in zip(list(prompt_logprobs), broadcast_flags, strict=True)
                if not is_finite}

    def _compute_prompt_logprobs(self, chunk: PrefillChunk, first_row: int, hidden_states: Tensor) -> PromptLogprobs:
        """Return logprobs of the prompt tokens that follow each token of the chunk, whose rows begin at `first_row`, in
        pieces that bound the memory for logits."""
        sequence = chunk.sequence
        targets = sequence.tokens[chunk.start + 1:min(chunk.end + 1, sequence.num_prompt_tokens)]
        result = PromptLogprobs(chunk.start + 1, [])
        for first in range(0, len(targets), MAX_PROMPT_LOGIT_ROWS):
            target_tokens = targets[first:first + MAX_PROMPT_LOGIT_ROWS]
            begin = first_row + first
            self.adapter_routing.set_rows([AdapterRowSpan(sequence.adapter_id, len(target_tokens))])
            logits = self.model.compute_logits(hidden_states[begin:begin + len(target_tokens)])
            if logits is not None:
                logprobs, top_tokens, top_logprobs = self.sampler.compute_prompt_logprobs(
                    logits, target_tokens, sequence.num_prompt_top_tokens)
                result.logprobs.extend(logprobs)
                result.top_tokens.extend(top_tokens)
                result.top_logprobs.extend(top_logprobs)
        return result


def is_draft_token_accepted(draft: list[int], index: int, output: SequenceOutput | None, sequence: Sequence) -> bool:
    """Whether the guess at `index` is the token that was sampled last, and there may be one behind it."""
    return (output is not None and index < len(draft) and len(output.tokens) == index + 1
            and output.tokens[index] == draft[index] and draft[index] not in sequence.sampling.end_tokens)


def find_non_finite_sequences(layout: StepLayout, hidden_states: Tensor) -> set[int]:
    if hidden_states.sum(dtype=torch.float32).isfinite():  # one sum over all is enough to find only finite ones
        return set()
    is_finite = hidden_states.isfinite().all(dim=-1).tolist()
    return {sequence.id for sequence, span in zip(layout.sequences, layout.spans, strict=True)
            if not all(is_finite[span.first_row:span.first_row + span.length])}


def zero_blocks_of_sequences(layout: StepLayout, sequence_ids: set[int], cache: KVCache) -> None:
    """Set the blocks to zero that these sequences wrote, which fail: docs/concepts/exactness.md, "No NaN stays in the
    cache"."""
    for sequence, span in zip(layout.sequences, layout.spans, strict=True):
        if sequence.id in sequence_ids:
            cache.zero_blocks(find_blocks_between(sequence, span.start, span.end, cache.block_size))


def drop_drafts(step: Step, layout: StepLayout, sequence_ids: set[int], cache: KVCache) -> None:
    """Drop the guesses of these sequences from the step, and set to zero what they wrote. They may be all that was not
    finite, and spoil the states of the known token before them."""
    for sequence, span in zip(layout.sequences, layout.spans, strict=True):
        if sequence.id in sequence_ids and step.drafts.pop(sequence.id, []):
            cache.zero_slots(cache.list_slots(span.blocks, span.start + 1, span.end))


def find_blocks_between(sequence: Sequence, start: int, end: int, block_size: int) -> list[int]:
    return sequence.blocks[start // block_size:-(-end // block_size)]


def build_model_inputs(layout: StepLayout, cache: KVCache, attention: AttentionBackend,
                       device: torch.device) -> ModelInputs:
    """Return the inputs of a forward pass for the layout of a step."""
    columns = make_token_columns(layout, cache, layout.num_dummy_rows).to(device)
    plan = attention.plan(layout.spans[:layout.num_decodes], layout.spans[layout.num_decodes:], columns.shape[1],
                          cache)
    return ModelInputs(columns[0], columns[1], columns[2], make_int64_tensor(layout.sampled_rows).to(device), plan)
