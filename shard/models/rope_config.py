"""Reader of the rotary embedding's settings in config.json."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from shard.json_config import Given
from shard.models.config import Rotary

ROTARY_KINDS = {  # with the settings that each requires
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}


def read_rotary(given: Given, positions: int, layers: str = "full_attention", *,
                renamed: Mapping[str, str] = MappingProxyType({})) -> Rotary:
    """Read `rope_parameters`, or `rope_scaling` and `rope_theta` of older files.

    `layers`: type of layers whose settings are read, if they differ by type. `renamed`: a model's own names of kinds.
    """
    values = given.within("rope_parameters", "rope_scaling")
    values = values.within(layers) if values.get(layers) is not None else values
    scaling = given.instead(values.values, "rope_parameters")
    kind = scaling.get("rope_type", "type") or "default"
    kind = renamed.get(str(kind), kind)
    scaling.one_of("rope_type", kind, ROTARY_KINDS)
    share = scaling.number("partial_rotary_factor", given.number("partial_rotary_factor", 1.0))
    theta = scaling.number("rope_theta", given.number("rope_theta", 10000.0))
    if kind == "longrope":
        return read_longrope(given, scaling, positions, Rotary(kind, theta, share=share))
    required = {name: scaling.number(name) for name in ROTARY_KINDS[kind]}
    if not required:
        return Rotary(kind, theta, share=share)
    return Rotary(
        kind, theta, factor=required["factor"],
        original_positions=original_positions(given, scaling, positions),
        low_frequency_factor=scaling.number("low_freq_factor", 1.0),
        high_frequency_factor=scaling.number("high_freq_factor", 4.0),
        beta_fast=scaling.number("beta_fast", 32.0), beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", default=True),
        amplitude=yarn_amplitude(scaling, required["factor"]) if kind == "yarn" else 1.0,
        share=share)


def read_longrope(given: Given, scaling: Given, positions: int, rotary: Rotary) -> Rotary:
    """Return the longrope settings. If the model supports more than its original context, the long factors are used
    for all sequences: with the short factors for short sequences, as in the authors' code, a token's keys would change
    as its sequence grows."""
    original = original_positions(given, scaling, positions)
    factor = scaling.number("factor", positions / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    name = "long_factor" if positions > original else "short_factor"
    return replace(rotary, factor=factor, original_positions=original, factors=read_factors(scaling, name),
                   amplitude=scaling.number("attention_factor", grown))


def read_factors(scaling: Given, name: str) -> tuple[float, ...]:
    factors = scaling.get(name)
    if not isinstance(factors, list) or not all(isinstance(each, int | float) and each > 0 for each in factors):
        raise ValueError(f"{scaling.source}: {name} must be a list of numbers above 0, got {factors}")
    return tuple(map(float, factors))


def original_positions(given: Given, scaling: Given, positions: int) -> int:
    """Return the context length before rope scaling. A top-level setting takes precedence over one in `scaling`."""
    return given.count("original_max_position_embeddings",
                       scaling.count("original_max_position_embeddings", positions))


def yarn_amplitude(scaling: Given, factor: float) -> float:
    """Return the factor of cosines and sines: as configured, or from the logarithm of the scaling factor."""
    if scaling.get("attention_factor") is not None:
        return scaling.number("attention_factor")
    above, below = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if above and below:
        return growth(factor, above) / growth(factor, below)
    return growth(factor, 1.0)


def growth(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def reach(rotary: Rotary, positions: int) -> int:
    """Return the maximum number of positions for which the rotary embedding is fixed and meant.

    `positions` is `max_position_embeddings`. With linear and yarn it may be the length before scaling, so the scaled
    length counts.
    """
    if rotary.kind == "linear":
        return int(positions * rotary.factor)
    if rotary.kind == "yarn":
        return max(positions, int(rotary.original_positions * rotary.factor))
    return positions
