"""Mistral: Llama with the same sliding window in all layers, or none."""

from shard.json_config import JsonConfig
from shard.models.config import ModelConfig, check_activation, parse_common_config

DEFAULT_SETTINGS = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}


def parse_mistral_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    settings = hf_config.with_defaults_for_absent_keys(**DEFAULT_SETTINGS)
    return parse_common_config(settings, ModelConfig, sliding_windows=parse_uniform_window(settings))


def parse_uniform_window(hf_config: JsonConfig) -> tuple[int, ...]:
    """Return the window sizes by layer, which must all be the same."""
    size = hf_config.get("sliding_window")
    kinds = set(hf_config.get("layer_types") or ())
    if kinds - {"full_attention" if size is None else "sliding_attention"}:
        raise ValueError(
            f"{hf_config.source}: layer_types {sorted(kinds)} with sliding_window {size} are not supported; "
            f"supported: the same in every layer")
    return (() if size is None
            else (hf_config.get_positive_int("sliding_window"),) * hf_config.get_positive_int("num_hidden_layers"))
