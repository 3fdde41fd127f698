"""The watermark: half of the vocabulary, chosen by the token before, is made likelier, so that text can be recognised.

On every device the halves are those of text-generation-inference on a CPU, so that its detectors recognise the text.
"""

import torch
from torch import Tensor

from shard.state.sequence import Sequence

KEY = 15485863
SHARE = 0.5
FAVOUR = 2.0


def watermark(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    for row, sequence in zip(rows, sequences, strict=True):
        logits[row, green_tokens(sequence.tokens[-1], logits.shape[-1]).to(logits.device)] += FAVOUR


def green_tokens(previous: int, vocabulary_size: int) -> Tensor:
    order = torch.randperm(vocabulary_size, generator=torch.Generator().manual_seed(KEY * previous))
    return order[:int(vocabulary_size * SHARE)]
