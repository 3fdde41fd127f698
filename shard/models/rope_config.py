"""Reader of the rotary embedding's settings in config.json."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig

ROPE_TYPE_SETTINGS = {  # with the settings that each requires
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}


def read_rotary_config(hf_config: JsonConfig, max_positions: int, layer_type: str = "full_attention", *,
                       rope_type_aliases: Mapping[str, str] = MappingProxyType({})) -> RotaryConfig:
    """Read `rope_parameters`, or `rope_scaling` and `rope_theta` of older files.

    `layer_type`: type of layers whose settings are read, if they differ by type. `rope_type_aliases`: a model's own
    names of kinds.
    """
    values = hf_config.get_subconfig("rope_parameters", "rope_scaling")
    values = values.get_subconfig(layer_type) if values.get(layer_type) is not None else values
    rope_settings = hf_config.make_subconfig(values.values, "rope_parameters")
    kind = rope_settings.get("rope_type", "type") or "default"
    kind = rope_type_aliases.get(str(kind), kind)
    rope_settings.require_supported("rope_type", kind, ROPE_TYPE_SETTINGS)
    share = rope_settings.get_positive_number("partial_rotary_factor",
                                              hf_config.get_positive_number("partial_rotary_factor", 1.0))
    theta = rope_settings.get_positive_number("rope_theta", hf_config.get_positive_number("rope_theta", 10000.0))
    if kind == "longrope":
        return read_longrope_config(hf_config, rope_settings, max_positions,
                                    RotaryConfig(kind, theta, rotated_fraction=share))
    required = {name: rope_settings.get_positive_number(name) for name in ROPE_TYPE_SETTINGS[kind]}
    if not required:
        return RotaryConfig(kind, theta, rotated_fraction=share)
    return RotaryConfig(
        kind, theta, scaling_factor=required["factor"],
        original_max_positions=read_original_max_positions(hf_config, rope_settings, max_positions),
        low_frequency_factor=rope_settings.get_positive_number("low_freq_factor", 1.0),
        high_frequency_factor=rope_settings.get_positive_number("high_freq_factor", 4.0),
        beta_fast=rope_settings.get_positive_number("beta_fast", 32.0),
        beta_slow=rope_settings.get_positive_number("beta_slow", 1.0),
        truncate=rope_settings.get_bool("truncate", default=True),
        attention_factor=compute_yarn_attention_factor(rope_settings, required["factor"]) if kind == "yarn" else 1.0,
        rotated_fraction=share)


def read_longrope_config(hf_config: JsonConfig, rope_settings: JsonConfig, max_positions: int,
                         rotary_config: RotaryConfig) -> RotaryConfig:
    """Return the longrope settings. If the model supports more than its original context, the long factors are used
    for all sequences: with the short factors for short sequences, as in the authors' code, a token's keys would change
    as its sequence grows."""
    original = read_original_max_positions(hf_config, rope_settings, max_positions)
    factor = rope_settings.get_positive_number("factor", max_positions / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    name = "long_factor" if max_positions > original else "short_factor"
    return replace(rotary_config, scaling_factor=factor, original_max_positions=original,
                   frequency_divisors=read_longrope_factors(rope_settings, name),
                   attention_factor=rope_settings.get_positive_number("attention_factor", grown))


def read_longrope_factors(rope_settings: JsonConfig, key: str) -> tuple[float, ...]:
    factors = rope_settings.get(key)
    if not isinstance(factors, list) or not all(isinstance(each, int | float) and each > 0 for each in factors):
        raise ValueError(f"{rope_settings.source}: {key} must be a list of numbers above 0, got {factors}")
    return tuple(map(float, factors))


def read_original_max_positions(hf_config: JsonConfig, rope_settings: JsonConfig, max_positions: int) -> int:
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
    """Return the maximum number of positions for which the rotary embedding is fixed and meant.

    `max_positions` is `max_position_embeddings`. With linear and yarn it may be the length before scaling, so the
    scaled length counts.
    """
    if rotary_config.rope_type == "linear":
        return int(max_positions * rotary_config.scaling_factor)
    if rotary_config.rope_type == "yarn":
        return max(max_positions, int(rotary_config.original_max_positions * rotary_config.scaling_factor))
    return max_positions
