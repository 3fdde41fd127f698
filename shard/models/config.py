"""Model config: sizes and options, under the same names for all families.

Options of a single family are in a subclass in the family's file.
"""

from dataclasses import dataclass

import torch

from shard.layers.rotary import RotaryConfig
from shard.quantization.format import QuantizationFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and options of a model, under the same names for all families."""

    architecture: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    max_positions: int  # maximum tokens in one sequence
    dtype: torch.dtype  # of the checkpoint
    rotary: RotaryConfig | None = None
    tie_word_embeddings: bool = False  # whether the head is the embedding
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_windows: tuple[int, ...] = ()  # by layer: positions a token attends to, itself included, 0: all; empty: all
    attention_scale: float | None = None  # factor of the scores; None: one over the square root of head_dim
    attention_softcap: float = 0.0  # soft limit of the scores; 0: none
    quantization: QuantizationFormat | None = None  # of the checkpoint
