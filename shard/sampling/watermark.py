"""The watermark: half of the vocabulary, chosen by the token before, is made likelier, so that text can be recognised.

On every device the halves are those of text-generation-inference on a CPU, so that its detectors recognise the text.
"""

import torch
from torch import Tensor

from shard.state.sequence import Sequence

HASH_KEY = 15485863
GREEN_SHARE = 0.5
GREEN_LOGIT_BIAS = 2.0


def apply_watermark(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    for row, sequence in zip(rows, sequences, strict=True):
        logits[row, choose_green_tokens(sequence.tokens[-1], logits.shape[-1]).to(logits.device)] += GREEN_LOGIT_BIAS


def choose_green_tokens(previous_token: int, vocabulary_size: int) -> Tensor:
    order = torch.randperm(vocabulary_size, generator=torch.Generator().manual_seed(HASH_KEY * previous_token))
    return order[:int(vocabulary_size * GREEN_SHARE)]
