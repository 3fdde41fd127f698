"""Builders of sequences with given sampling parameters, and of random logits."""

from collections.abc import Sequence as Rows
from typing import Any

import torch
from torch import Tensor

from shard.state.sequence import Sampling, Sequence


def asking(*, prompt: Rows[int] = (1, 2, 3), output: Rows[int] = (), key: int = 0, **sampling: Any) -> Sequence:
    tokens = [*prompt, *output]
    return Sequence(
        id=key, tokens=tokens, num_prompt_tokens=len(prompt), num_given=len(prompt), computed=len(tokens) - 1,
        num_cached=0, blocks=[], key=key, sampling=Sampling(**sampling), prompt_logprobs=False, adapter=0, grammar=0)


def random_logits(num_rows: int, vocabulary_size: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(num_rows, vocabulary_size, generator=torch.Generator().manual_seed(seed)) * spread
