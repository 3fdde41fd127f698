"""Estimate of the memory that a model's weights take, from its files."""

from pathlib import Path

import torch

from shard.checkpoint.reader import count_quantizable_weight_bytes, count_weight_bytes
from shard.models.config import ModelConfig
from shard.ops.native_linear import bytes_per_stored_weight

BYTES_BY_QUANTIZATION = {"int8": 1.0, "int4": 0.75}  # of a weight by --quantize, with its scales


def estimate_weight_bytes(folder: Path, model_config: ModelConfig, dtype: torch.dtype, device: torch.device,
                          quantize: str = "") -> int:
    """Return the bytes of all shards together. With `quantize`, a head that is the embedding is kept twice: as int8 for
    its products, and as it is for the embedding."""
    num_stored_bytes = bytes_per_stored_weight(model_config.dtype, dtype, device)  # of a number
    needed_bytes = count_weight_bytes(folder) * num_stored_bytes // model_config.dtype.itemsize
    if not quantize:
        return needed_bytes
    num_values = count_quantizable_weight_bytes(folder) // model_config.dtype.itemsize
    num_head_bytes = (model_config.vocabulary_size * model_config.hidden_size
                      if model_config.tie_word_embeddings else 0)
    return needed_bytes - int(num_values * (num_stored_bytes - BYTES_BY_QUANTIZATION[quantize])) + num_head_bytes
