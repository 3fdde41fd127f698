"""What a model is: sizes and variants, in our words. Knows nothing of files, nor of how any of it is computed."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rotary:
    """How positions turn queries and keys. What a kind does not use is left at its default."""

    kind: str
    theta: float
    factor: float = 1.0
    original_positions: int = 0  # how far the model reached before its context was stretched
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    amplitude: float = 1.0  # what cosines and sines are multiplied with


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rotary: Rotary
    max_positions: int  # the most tokens in one sequence
    tied: bool  # whether the head is the embedding
    attention_bias: bool
    mlp_bias: bool
    dtype: torch.dtype  # of the checkpoint
