"""What a config.json says of the rotary embedding, in our words. Knows nothing of how it is computed."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from shard.given import Given
from shard.models.config import Rotary

ROTARY_KINDS = {  # and what each cannot do without
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}


def read_rotary(given: Given, positions: int, layers: str = "full_attention", *,
                renamed: Mapping[str, str] = MappingProxyType({})) -> Rotary:
    """From `rope_parameters`, or from `rope_scaling` with `rope_theta` beside it, as older files have it. A model may
    tell it apart for `layers` of each kind, and have `renamed` kinds."""
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
    """The factors of long sequences count for all if the model reaches beyond its original context: were those of
    short ones used for short sequences, as their authors do, a token's keys would change while its sequence grows."""
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
    """How far the model reached before it was stretched. Beside the rest it counts more than among it."""
    return given.count("original_max_position_embeddings",
                       scaling.count("original_max_position_embeddings", positions))


def yarn_amplitude(scaling: Given, factor: float) -> float:
    """By how much cosines and sines grow: as given, or by the logarithm of the stretching."""
    if scaling.get("attention_factor") is not None:
        return scaling.number("attention_factor")
    above, below = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if above and below:
        return growth(factor, above) / growth(factor, below)
    return growth(factor, 1.0)


def growth(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def reach(rotary: Rotary, positions: int) -> int:
    """The most positions for which the rotary embedding is fixed and meant. Where `max_position_embeddings` may be
    that of the model before it was stretched, the stretched length counts."""
    if rotary.kind == "linear":
        return int(positions * rotary.factor)
    if rotary.kind == "yarn":
        return max(positions, int(rotary.original_positions * rotary.factor))
    return positions
