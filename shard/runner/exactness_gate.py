"""The exactness gate at start: whether a sequence gets the same bits alone, in any batch, and with any chunks.

It runs one layer of each kind and the head of the model on this machine and compares bits, not closeness.
docs/exactness.md, "How it is checked", describes what a difference leads to.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.forward_inputs import build_forward_inputs
from shard.attention.kv_cache import KVCache
from shard.models.config import ModelConfig
from shard.models.decoder import RunnableModel
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.state.sequence import Sequence
from shard.state.step import PrefillChunk, Step, StepLayout, lay_out_step

OBSERVED_LENGTH = 300  # tokens of the observed sequence: its slots are gathered as 64, 128, 256 and 512
FIRST_CHUNK_SHARE = 0.45  # share of them in the first chunk

TensorsByName = dict[str, Tensor]


class ExactnessGateSizes(NamedTuple):
    """Batch sizes with which the exactness gate compares bits."""

    batch_sizes: tuple[int, ...]  # sizes of batches that decode
    max_head_rows: int  # at most so many rows are run through the head, which is large
    prompt_counts: tuple[int, ...]  # numbers of prompts that run beside the observed one


QUICK_GATE_SIZES = ExactnessGateSizes((2, 17, 300), 17, ())
# All sizes for which a GPU might run another kernel, those that are captured among them, and rows of many prompts.
THOROUGH_GATE_SIZES = ExactnessGateSizes((2, 3, 4, 7, 8, 16, 24, 31, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 200,
                                          224, 256, 300, 320, 384, 448, 511, 512), 512, (1, 2, 6, 13))


class ExactnessGate:
    """Comparison of one sequence's bits between steps of different contents."""

    def __init__(self, model: RunnableModel, config: ModelConfig, attention: AttentionBackend,
                 make_cache: Callable[[int], KVCache], device: torch.device, *,
                 sizes: ExactnessGateSizes = QUICK_GATE_SIZES) -> None:
        """Create the gate. `model` needs one layer of each kind; `make_cache` allocates its cache, of a number of
        blocks of `MIN_BLOCK_SIZE` slots."""
        self._sizes = sizes
        self._model = model
        self._attention = attention
        self._observed_length = min(OBSERVED_LENGTH, config.max_positions)
        self._first_chunk_length = max(1, int(FIRST_CHUNK_SHARE * self._observed_length))
        self._cache = make_cache(2 * count_blocks(self._observed_length))
        self._device = device
        generator = torch.Generator().manual_seed(0)
        tokens: list[int] = torch.randint(config.vocabulary_size, (2 * self._observed_length,),
                                          generator=generator).tolist()
        self._observed_sequence = make_sequence(0, tokens[:self._observed_length], 0)
        # All other sequences share their blocks: their results are not compared.
        self._other_sequences = [make_sequence(sequence_id, tokens[self._observed_length:],
                                               count_blocks(self._observed_length))
                                 for sequence_id in range(max(sizes.batch_sizes))]

    @torch.inference_mode()
    def find_difference(self) -> str:
        """Return the first difference, or an empty string. Each case reads what the cases before it wrote to the cache,
        which has the right bits as long as none of them differs. All cases are run after a difference, too: other ranks
        may have found none yet."""
        expected, difference = self._run_alone(), ""
        for name, run_case in self._list_cases():
            outputs = run_case()
            different = [output_name for output_name in outputs
                         if not have_same_bits(outputs[output_name], expected[output_name])]
            if different and not difference:
                difference = f"{name} has other bits in {' and '.join(different)} than the same prompt alone"
        return difference

    def _list_cases(self) -> list[tuple[str, Callable[[], TensorsByName]]]:
        return [
            ("a prompt in two chunks", self._run_in_two_chunks),
            ("a token decoded alone", partial(self._run_decode_batch, 1)),
            *((f"a token in a batch of {size}", partial(self._run_decode_batch, size))
              for size in self._sizes.batch_sizes),
            ("a chunk beside decodes", partial(self._run_chunk_beside_decodes, self._sizes.batch_sizes[0])),
            *((f"a prompt among {count} others", partial(self._run_among_prompts, count))
              for count in self._sizes.prompt_counts),
        ]

    def _run_alone(self) -> TensorsByName:
        self._run_model(lay_out_step(Step(chunks=[PrefillChunk(self._other_sequences[0], 0, self._observed_length)])))
        return self._compute_observed_outputs(
            Step(chunks=[PrefillChunk(self._observed_sequence, 0, self._observed_length)]), self._observed_length - 1)

    def _run_in_two_chunks(self) -> TensorsByName:
        self._run_model(lay_out_step(Step(chunks=[PrefillChunk(self._observed_sequence, 0, self._first_chunk_length)])))
        return self._compute_observed_outputs(Step(chunks=[self._make_second_chunk()]),
                                              self._observed_length - self._first_chunk_length - 1)

    def _run_decode_batch(self, batch_size: int) -> TensorsByName:
        others, index = self._other_sequences[:batch_size - 1], (batch_size - 1) // 2
        return self._compute_observed_outputs(Step(decodes=[*others[:index], self._observed_sequence, *others[index:]]),
                                              index)

    def _run_chunk_beside_decodes(self, num_decodes: int) -> TensorsByName:
        step = Step(decodes=self._other_sequences[:num_decodes], chunks=[self._make_second_chunk()])
        return self._compute_observed_outputs(step, num_decodes + self._observed_length - self._first_chunk_length - 1)

    def _run_among_prompts(self, num_prompts: int) -> TensorsByName:
        prompts = [PrefillChunk(other, 0, self._observed_length) for other in self._other_sequences[:num_prompts]]
        step = Step(chunks=[*prompts, PrefillChunk(self._observed_sequence, 0, self._observed_length)])
        return self._compute_observed_outputs(step, len(step.chunks) * self._observed_length - 1)

    def _make_second_chunk(self) -> PrefillChunk:
        return PrefillChunk(self._observed_sequence, self._first_chunk_length,
                            self._observed_length - self._first_chunk_length)

    def _run_model(self, layout: StepLayout) -> Tensor:
        inputs = build_forward_inputs(layout, self._cache, self._attention, self._device)
        return self._model.forward(inputs, self._cache, self._attention)

    def _compute_observed_outputs(self, step: Step, row: int) -> TensorsByName:
        """Run the step and return the bits of the observed sequence's last token, in `row`. Only rank 0 has logits."""
        layout, max_rows = lay_out_step(step), self._sizes.max_head_rows
        hidden_states = self._run_model(layout)
        rows = [span.first_row + span.length - 1 for span in layout.spans]  # of each sequence's last token
        index = rows.index(row)
        first = max(0, min(index - max_rows // 2, len(rows) - max_rows))
        logits = self._model.compute_logits(hidden_states[rows[first:first + max_rows]])
        outputs = {"hidden states": hidden_states[row].clone()}
        if logits is None:
            return outputs
        return outputs | {"logits": logits[index - first].clone(),
                          "logprobs": logits.log_softmax(-1)[index - first].clone()}


def have_same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether both tensors have the same bits, those of NaNs included."""
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def make_sequence(sequence_id: int, tokens: list[int], first_block: int) -> Sequence:
    return Sequence.from_prompt(sequence_id, tokens, list(range(first_block, first_block + count_blocks(len(tokens)))))


def count_blocks(num_tokens: int) -> int:
    return -(-num_tokens // MIN_BLOCK_SIZE)
