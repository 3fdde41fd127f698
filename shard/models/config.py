"""Model config: sizes and options, under the same names for all families, and the reader of the settings that the
config.json of most families have in common.

Options of a single family are in a subclass in the family's file.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig
from shard.models.rope_config import compute_max_positions, read_rotary_config
from shard.quantization.format import QuantizationFormat

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


AnyConfig = TypeVar("AnyConfig", bound=ModelConfig)


def parse_common_config(hf_config: JsonConfig, config_class: type[AnyConfig], **overrides: Any) -> AnyConfig:
    """Return a `config_class` with settings read under their usual names, except for the fields given in
    `overrides`."""
    config = config_class(**parse_common_fields(hf_config, overrides) | overrides)
    if config.num_heads % config.num_kv_heads:
        raise ValueError(f"{hf_config.source}: num_attention_heads ({config.num_heads}) must be a multiple of "
                         f"num_key_value_heads ({config.num_kv_heads})")
    check_longrope_factors(hf_config, config)
    return config


def check_longrope_factors(hf_config: JsonConfig, config: ModelConfig) -> None:
    """Check that rope factors, if there are any, are as many as rotated pairs."""
    if config.rotary is None or not config.rotary.frequency_divisors:
        return
    num_pairs = int(config.rotary.rotated_fraction * config.head_dim) // 2
    if len(config.rotary.frequency_divisors) != num_pairs:
        raise ValueError(
            f"{hf_config.source}: rope_parameters: {num_pairs} pairs of a head are turned and need as many "
            f"factors, got {len(config.rotary.frequency_divisors)}")


def parse_common_fields(hf_config: JsonConfig, overrides: dict[str, Any]) -> dict[str, Any]:
    """Read the settings under their usual names. Fields in `overrides` are not read."""
    num_heads = overrides.get("num_heads") or hf_config.get_positive_int("num_attention_heads")
    hidden_size = overrides.get("hidden_size") or hf_config.get_positive_int("hidden_size")
    positions = overrides.get("max_positions") or hf_config.get_positive_int("max_position_embeddings", 2048)
    rotary = overrides["rotary"] if "rotary" in overrides else read_rotary_config(hf_config, positions)
    return {
        "architecture": hf_config.get("architectures")[0], "hidden_size": hidden_size, "num_heads": num_heads,
        "num_layers": overrides.get("num_layers") or hf_config.get_positive_int("num_hidden_layers"),
        "vocabulary_size": overrides.get("vocabulary_size") or hf_config.get_positive_int("vocab_size"),
        "intermediate_size": overrides.get("intermediate_size") or hf_config.get_positive_int("intermediate_size"),
        "num_kv_heads": overrides.get("num_kv_heads") or hf_config.get_positive_int("num_key_value_heads", num_heads),
        "head_dim": overrides.get("head_dim") or hf_config.get_positive_int("head_dim", hidden_size // num_heads),
        "norm_epsilon": overrides.get("norm_epsilon") or hf_config.get_positive_number("rms_norm_eps", 1e-6),
        "rotary": rotary, "max_positions": compute_max_positions(rotary, positions) if rotary else positions,
        "tie_word_embeddings": hf_config.get_bool("tie_word_embeddings", default=False), "dtype": read_dtype(hf_config)}


def read_dtype(hf_config: JsonConfig) -> torch.dtype:
    """Return the checkpoint's dtype; float32, torch's default, if config.json has none."""
    dtype = hf_config.get("dtype", "torch_dtype") or "float32"
    hf_config.require_supported("dtype", dtype, DTYPES)
    return DTYPES[dtype]


def read_sliding_windows(hf_config: JsonConfig, num_layers: int, *, enabled_by_default: bool) -> tuple[int, ...]:
    """Return the window sizes by layer, none if no layer has a window.

    Without `layer_types`, all layers have one if that is `enabled_by_default` and `sliding_window` is set.
    """
    layer_types = hf_config.get("layer_types") or (["sliding_attention" if enabled_by_default else "full_attention"]
                                                   * num_layers)
    for kind in layer_types:
        hf_config.require_supported("layer_types", kind, ("full_attention", "sliding_attention"))
    if len(layer_types) != num_layers:
        raise ValueError(
            f"{hf_config.source}: layer_types has {len(layer_types)} entries for num_hidden_layers {num_layers}")
    if hf_config.get("sliding_window") is None or "sliding_attention" not in layer_types:
        return ()
    size = hf_config.get_positive_int("sliding_window")
    return tuple(size if kind == "sliding_attention" else 0 for kind in layer_types)


def check_activation(hf_config: JsonConfig, *supported: str) -> None:
    """Reject an activation that is not among `supported`."""
    named = hf_config.get("hidden_activation", "hidden_act", "activation_function") or supported[0]
    hf_config.require_supported("hidden_act", named, supported)
