"""Minimal contents of config.json, and the configs parsed from them."""

from typing import Any

from shard.json_config import JsonConfig
from shard.models.registry import parse_model_config

MODEL_SIZES = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}


def make_model_config(architecture: str, **changes: Any) -> Any:
    """Return the config of a file with sizes, an architecture and `changes`."""
    return parse_model_config(JsonConfig(MODEL_SIZES | {"architectures": [architecture]} | changes,
                                                     "config.json"))
