"""The exactness gates at start: whether a sequence gets the same bits alone, in any batch, and with any chunks. They
run one layer of each kind and the head of a decoder, or one layer and the classifier of an encoder, on this machine.
docs/concepts/exactness.md, "How it is checked", tells what a difference leads to."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.encoder import iter_text_slices
from shard.attention.kv_cache import KVCache
from shard.models.config import ModelConfig
from shard.models.decoder import RunnableModel
from shard.models.encoder import Encoder, build_encoder_inputs
from shard.runner.model_runner import build_model_inputs
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.state.sequence import PoolingText, Sequence
from shard.state.step import PrefillChunk, Step, StepLayout, lay_out_step

OBSERVED_LENGTH = 300  # tokens of the observed sequence: its slots are gathered as 64, 128, 256 and 512
FIRST_CHUNK_SHARE = 0.45  # share of them in the first chunk
# tokens of the texts that are compared with an encoder, and of those in the batch before the text and behind it
TEXT_LENGTHS = (1, 7, 100)
NEIGHBOUR_LENGTHS = ((1,), (16,), (299,), (3, 2, 40))

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
        length = self._observed_length
        self._run_model(lay_out_step(Step(chunks=[PrefillChunk(self._other_sequences[0], 0, length)])))
        prompt_step = Step(chunks=[PrefillChunk(self._observed_sequence, 0, length)])
        expected, difference = self._compute_observed_outputs(prompt_step, length - 1), ""
        for name, step, row in self._iter_cases():
            outputs = self._compute_observed_outputs(step, row)
            different = [output_name for output_name in outputs
                         if not have_same_bits(outputs[output_name], expected[output_name])]
            if different and not difference:
                difference = f"{name} has other bits in {' and '.join(different)} than the same prompt alone"
        return difference

    def _iter_cases(self) -> Iterator[tuple[str, Step, int]]:
        """Yield each case's name, its step, and the row of the observed sequence's last token in it."""
        observed, others, length = self._observed_sequence, self._other_sequences, self._observed_length
        second_chunk = PrefillChunk(observed, self._first_chunk_length, length - self._first_chunk_length)
        self._run_model(lay_out_step(Step(chunks=[PrefillChunk(observed, 0, self._first_chunk_length)])))
        yield "a prompt in two chunks", Step(chunks=[second_chunk]), second_chunk.length - 1
        for size in (1, *self._sizes.batch_sizes):
            index = (size - 1) // 2
            yield ("a token decoded alone" if size == 1 else f"a token in a batch of {size}",
                   Step(decodes=[*others[:index], observed, *others[index:size - 1]]), index)
        num_decodes = self._sizes.batch_sizes[0]
        yield ("a chunk beside decodes", Step(decodes=others[:num_decodes], chunks=[second_chunk]),
               num_decodes + second_chunk.length - 1)
        for count in self._sizes.prompt_counts:
            prompts = [PrefillChunk(sequence, 0, length) for sequence in (*others[:count], observed)]
            yield f"a prompt among {count} others", Step(chunks=prompts), len(prompts) * length - 1

    def _run_model(self, layout: StepLayout) -> Tensor:
        inputs = build_model_inputs(layout, self._cache, self._attention, self._device)
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


@torch.inference_mode()
def find_encoder_difference(model: Encoder, device: torch.device) -> str:
    """Return what differs, or an empty string. `model` needs one layer."""
    for length in TEXT_LENGTHS:
        text = make_random_pooling_text(model, length)
        alone = compute_encoder_outputs(model, [text], 0, device)
        for lengths in NEIGHBOUR_LENGTHS:
            neighbours = [make_random_pooling_text(model, neighbour_length) for neighbour_length in lengths]
            batch = [*neighbours, text, *neighbours]
            if not all(map(have_same_bits, compute_encoder_outputs(model, batch, len(neighbours), device), alone)):
                return f"a text of {len(text.tokens)} tokens has other bits among {len(batch)} texts than alone"
    return ""


def make_random_pooling_text(model: Encoder, length: int) -> PoolingText:
    config, generator = model.config, torch.Generator().manual_seed(length)
    length = min(length, config.max_positions)
    return PoolingText(torch.randint(config.vocabulary_size, (length,), generator=generator).tolist())


def compute_encoder_outputs(model: Encoder, texts: list[PoolingText], index: int, device: torch.device) -> list[Tensor]:
    """Return the hidden states of the text at this index, and its probabilities of labels if there is a classifier.
    """
    hidden_states = model.forward(build_encoder_inputs(texts, model.config, device))
    rows = [*iter_text_slices([len(text.tokens) for text in texts])][index]
    outputs = [hidden_states] if model.classifier is None else [hidden_states,
                                                                model.classify_tokens(hidden_states)]
    return [output[rows].contiguous() for output in outputs]


def have_same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether both tensors have the same bits, those of NaNs included."""
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def make_sequence(sequence_id: int, tokens: list[int], first_block: int) -> Sequence:
    return Sequence.from_prompt(sequence_id, tokens, list(range(first_block, first_block + count_blocks(len(tokens)))))


def count_blocks(num_tokens: int) -> int:
    return -(-num_tokens // MIN_BLOCK_SIZE)
