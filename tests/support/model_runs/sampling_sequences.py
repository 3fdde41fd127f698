"""Builders of sequences with given sampling parameters, and of random logits."""

from collections.abc import Sequence as GenericSequence
from typing import Any

import torch
from torch import Tensor

from shard.state.sequence import SamplingParams, Sequence


def make_sampling_sequence(*, prompt: GenericSequence[int] = (1, 2, 3), output: GenericSequence[int] = (), key: int = 0,
                           **sampling: Any) -> Sequence:
    tokens = [*prompt, *output]
    return Sequence(id=key, tokens=tokens, num_prompt_tokens=len(prompt), num_tokens_to_prefill=len(prompt),
                    num_computed_tokens=len(tokens) - 1, num_cached_tokens=0, blocks=[], sampling_key=key,
                    sampling=SamplingParams(**sampling), wants_prompt_logprobs=False, adapter_id=0, grammar_id=0)


def make_random_logits(num_rows: int, vocabulary_size: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(num_rows, vocabulary_size, generator=torch.Generator().manual_seed(seed)) * scale


def make_rounded_logits(num_rows: int, vocabulary_size: int, seed: int, step: float) -> Tensor:
    """Return random logits that are multiples of `step`, so that some are equal."""
    return (make_random_logits(num_rows, vocabulary_size, seed) / step).round() * step
