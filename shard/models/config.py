"""What a model is: sizes and variants, in our words. Knows nothing of files, nor of how any of it is computed.

What only one family has is in a dataclass of its own, made from this one, in the family's file.
"""

from dataclasses import dataclass

import torch

from shard.quantization.coded import Format


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
    share: float = 1.0  # of a head's values, from the first on, that are turned
    neighbours: bool = False  # whether a value's partner is the one beside it, not half a head away
    factors: tuple[float, ...] = ()  # by pair, how much its turns are stretched


@dataclass(frozen=True, slots=True, kw_only=True)
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
    max_positions: int  # the most tokens in one sequence
    dtype: torch.dtype  # of the checkpoint
    rotary: Rotary | None = None
    tied: bool = False  # whether the head is the embedding
    attention_bias: bool = False
    mlp_bias: bool = False
    windows: tuple[int, ...] = ()  # how many places each layer sees, its own among them, 0: all; empty: all everywhere
    scale: float | None = None  # of queries times keys; None: one over the root of head_dim
    softcap: float = 0.0  # what such products come near to at most, 0: no bound
    quantization: Format | None = None  # of the checkpoint
