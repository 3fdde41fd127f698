"""Inputs of one forward pass. Those of a recorded one keep their addresses and are written again for each step."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

DUMMY_TOKEN = 0


@dataclass(frozen=True, slots=True)
class ModelInputs:
    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens], where each token's key and value go
    sampled_rows: Tensor  # indices of the tokens whose logits are needed, in the order of `StepLayout.sampled_rows`
    attention_plan: Any  # of the attention backend, the same for every layer
