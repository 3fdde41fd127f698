"""The exactness gate at start for encoders: whether a text gets the same bits alone and in any batch.

It runs one layer and the classifier on this machine and compares bits, not closeness: docs/exactness.md,
"How it is checked".
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from shard.models.encoder import Encoder, build_encoder_inputs
from shard.runner.exactness_gate import have_same_bits
from shard.state.sequence import PoolingText

TEXT_LENGTHS = (1, 7, 100)  # tokens of the texts that are compared
# tokens of the texts in the batch: these before the text and behind it
NEIGHBOUR_LENGTHS = ((1,), (16,), (299,), (3, 2, 40))


@torch.inference_mode()
def find_difference(model: Encoder, device: torch.device) -> str:
    """Return what differs, or an empty string. `model` needs one layer."""
    for length in TEXT_LENGTHS:
        text = make_random_pooling_text(model, length)
        alone = compute_outputs(model, [text], 0, device)
        for neighbours in iter_neighbours(model):
            batch = [*neighbours, text, *neighbours]
            if not all(map(have_same_bits, compute_outputs(model, batch, len(neighbours), device), alone)):
                return f"a text of {len(text.tokens)} tokens has other bits among {len(batch)} texts than alone"
    return ""


def iter_neighbours(model: Encoder) -> Iterator[list[PoolingText]]:
    return ([make_random_pooling_text(model, length) for length in lengths] for lengths in NEIGHBOUR_LENGTHS)


def make_random_pooling_text(model: Encoder, length: int) -> PoolingText:
    config, generator = model.config, torch.Generator().manual_seed(length)
    length = min(length, config.max_positions)
    return PoolingText(torch.randint(config.vocabulary_size, (length,), generator=generator).tolist())


def compute_outputs(model: Encoder, texts: list[PoolingText], index: int, device: torch.device) -> list[Tensor]:
    """Return the hidden states of the text at this index, and its probabilities of labels if there is a classifier.
    """
    hidden_states = model.forward(build_encoder_inputs(texts, model.config, device))
    first = sum(len(text.tokens) for text in texts[:index])
    rows = slice(first, first + len(texts[index].tokens))
    outputs = [hidden_states] if model.classifier is None else [hidden_states,
                                                                model.compute_label_probabilities(hidden_states)]
    return [output[rows].contiguous() for output in outputs]
