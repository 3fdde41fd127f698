"""Model config: sizes and options, under the same names for all families, and the reader of the settings that the
config.json of most families have in common. Options of a single family are in a subclass in the family's file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig
from shard.quantization.quantization_format import QuantizationFormat

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROPE_TYPE_SETTINGS = {  # with the settings that each requires
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}


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
    if config.rotary is not None and config.rotary.frequency_divisors:
        num_pairs = int(config.rotary.rotated_fraction * config.head_dim) // 2
        if len(config.rotary.frequency_divisors) != num_pairs:
            raise ValueError(
                f"{hf_config.source}: rope_parameters: {num_pairs} pairs of a head are turned and need as many "
                f"factors, got {len(config.rotary.frequency_divisors)}")
    return config


def parse_common_fields(hf_config: JsonConfig, overrides: dict[str, Any]) -> dict[str, Any]:
    """Parse the settings under their usual names. Fields in `overrides` are not read."""
    num_heads = overrides.get("num_heads") or hf_config.get_positive_int("num_attention_heads")
    hidden_size = overrides.get("hidden_size") or hf_config.get_positive_int("hidden_size")
    positions = overrides.get("max_positions") or hf_config.get_positive_int("max_position_embeddings", 2048)
    rotary = overrides["rotary"] if "rotary" in overrides else parse_rotary_config(hf_config, positions)
    return {
        "architecture": hf_config.get("architectures")[0], "hidden_size": hidden_size, "num_heads": num_heads,
        "num_layers": overrides.get("num_layers") or hf_config.get_positive_int("num_hidden_layers"),
        "vocabulary_size": overrides.get("vocabulary_size") or hf_config.get_positive_int("vocab_size"),
        "intermediate_size": overrides.get("intermediate_size") or hf_config.get_positive_int("intermediate_size"),
        "num_kv_heads": overrides.get("num_kv_heads") or hf_config.get_positive_int("num_key_value_heads", num_heads),
        "head_dim": overrides.get("head_dim") or hf_config.get_positive_int("head_dim", hidden_size // num_heads),
        "norm_epsilon": overrides.get("norm_epsilon") or hf_config.get_positive_number("rms_norm_eps", 1e-6),
        "rotary": rotary, "max_positions": compute_max_positions(rotary, positions) if rotary else positions,
        "tie_word_embeddings": hf_config.get_bool("tie_word_embeddings", default=False),
        "dtype": parse_dtype(hf_config)}


def parse_dtype(hf_config: JsonConfig) -> torch.dtype:
    """Return the checkpoint's dtype; float32, torch's default, if config.json has none."""
    dtype = hf_config.get("dtype", "torch_dtype") or "float32"
    hf_config.require_supported("dtype", dtype, DTYPES)
    return DTYPES[dtype]


def parse_sliding_windows(hf_config: JsonConfig, num_layers: int, *, enabled_by_default: bool) -> tuple[int, ...]:
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


def reject_sliding_windows(hf_config: JsonConfig) -> None:
    if set(hf_config.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError(
            f"{hf_config.source}: layer_types {sorted(set(hf_config.get('layer_types')))} are not supported; "
            f"supported: full_attention in every layer")


def check_activation(hf_config: JsonConfig, *supported: str) -> None:
    """Reject an activation that is not among `supported`."""
    named = hf_config.get("hidden_activation", "hidden_act", "activation_function") or supported[0]
    hf_config.require_supported("hidden_act", named, supported)


# ---------------------------------------------------------------------------------------------------------------------
# The rotary embedding


def parse_rotary_config(hf_config: JsonConfig, max_positions: int, *,
                        rope_type_aliases: Mapping[str, str] = MappingProxyType({})) -> RotaryConfig:
    """Parse `rope_parameters`, or `rope_scaling` and `rope_theta` of older files. If settings differ by type of layer,
    those of layers with full attention are read. `rope_type_aliases`: a model's own names of kinds."""
    values = hf_config.get_subconfig("rope_parameters", "rope_scaling")
    if values.get("full_attention") is not None:
        values = values.get_subconfig("full_attention")
    rope_settings = hf_config.make_subconfig(values.values, "rope_parameters")
    kind = rope_settings.get("rope_type", "type") or "default"
    kind = rope_type_aliases.get(str(kind), kind)
    rope_settings.require_supported("rope_type", kind, ROPE_TYPE_SETTINGS)
    share = rope_settings.get_positive_number("partial_rotary_factor",
                                              hf_config.get_positive_number("partial_rotary_factor", 1.0))
    theta = rope_settings.get_positive_number("rope_theta", hf_config.get_positive_number("rope_theta", 10000.0))
    if kind == "longrope":
        return parse_longrope_config(hf_config, rope_settings, max_positions,
                                     RotaryConfig(kind, theta, rotated_fraction=share))
    required = {name: rope_settings.get_positive_number(name) for name in ROPE_TYPE_SETTINGS[kind]}
    if not required:
        return RotaryConfig(kind, theta, rotated_fraction=share)
    return RotaryConfig(
        kind, theta, scaling_factor=required["factor"],
        original_max_positions=parse_original_max_positions(hf_config, rope_settings, max_positions),
        low_frequency_factor=rope_settings.get_positive_number("low_freq_factor", 1.0),
        high_frequency_factor=rope_settings.get_positive_number("high_freq_factor", 4.0),
        beta_fast=rope_settings.get_positive_number("beta_fast", 32.0),
        beta_slow=rope_settings.get_positive_number("beta_slow", 1.0),
        truncate=rope_settings.get_bool("truncate", default=True),
        attention_factor=compute_yarn_attention_factor(rope_settings, required["factor"]) if kind == "yarn" else 1.0,
        rotated_fraction=share)


def parse_longrope_config(hf_config: JsonConfig, rope_settings: JsonConfig, max_positions: int,
                          rotary_config: RotaryConfig) -> RotaryConfig:
    """Return the longrope settings. If the model supports more than its original context, the long factors are used
    for all sequences: with the short factors for short sequences, as in the authors' code, a token's keys would change
    as its sequence grows."""
    original = parse_original_max_positions(hf_config, rope_settings, max_positions)
    factor = rope_settings.get_positive_number("factor", max_positions / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    name = "long_factor" if max_positions > original else "short_factor"
    factors = rope_settings.get(name)
    if not isinstance(factors, list) or not all(isinstance(each, int | float) and each > 0 for each in factors):
        raise ValueError(f"{rope_settings.source}: {name} must be a list of numbers above 0, got {factors}")
    return replace(rotary_config, scaling_factor=factor, original_max_positions=original,
                   frequency_divisors=tuple(map(float, factors)),
                   attention_factor=rope_settings.get_positive_number("attention_factor", grown))


def parse_original_max_positions(hf_config: JsonConfig, rope_settings: JsonConfig, max_positions: int) -> int:
    """Return the context length before rope scaling. A top-level setting takes precedence over one in
    `rope_settings`."""
    return hf_config.get_positive_int("original_max_position_embeddings",
                                      rope_settings.get_positive_int("original_max_position_embeddings", max_positions))


def compute_yarn_attention_factor(rope_settings: JsonConfig, scaling_factor: float) -> float:
    """Return the factor of cosines and sines: as configured, or from the logarithm of the scaling factor."""
    if rope_settings.get("attention_factor") is not None:
        return rope_settings.get_positive_number("attention_factor")
    above, below = rope_settings.get("mscale"), rope_settings.get("mscale_all_dim")
    if above and below:
        return compute_yarn_mscale(scaling_factor, above) / compute_yarn_mscale(scaling_factor, below)
    return compute_yarn_mscale(scaling_factor, 1.0)


def compute_yarn_mscale(scaling_factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(scaling_factor) + 1.0 if scaling_factor > 1.0 else 1.0


def compute_max_positions(rotary_config: RotaryConfig, max_positions: int) -> int:
    """Return the maximum number of positions for which the rotary embedding is fixed and meant. `max_positions` is
    `max_position_embeddings`: with linear and yarn it may be the length before scaling, so the scaled length counts."""
    if rotary_config.rope_type == "linear":
        return int(max_positions * rotary_config.scaling_factor)
    if rotary_config.rope_type == "yarn":
        return max(max_positions, int(rotary_config.original_max_positions * rotary_config.scaling_factor))
    return max_positions
