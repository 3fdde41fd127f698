"""What a config.json says of the rotary embedding, in our words. Knows nothing of how it is computed."""

import math

from shard.given import Given
from shard.models.config import Rotary

ROTARY_KINDS = {  # and what each cannot do without
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}


def read_rotary(given: Given, positions: int, layers: str = "full_attention") -> Rotary:
    """From `rope_parameters`, or from `rope_scaling` with `rope_theta` beside it, as older files have it. A model may
    tell it apart for `layers` of each kind."""
    values = given.get("rope_parameters", "rope_scaling") or {}
    scaling = given.within(values.get(layers, values), "rope_parameters")
    kind = scaling.get("rope_type", "type") or "default"
    scaling.refuse_unless(ROTARY_KINDS, "rope_type", kind)
    share = scaling.number("partial_rotary_factor", given.number("partial_rotary_factor", 1.0))
    theta = scaling.number("rope_theta", given.number("rope_theta", 10000.0))
    required = {name: scaling.number(name) for name in ROTARY_KINDS[kind]}
    if not required:
        return Rotary(kind, theta, share=share)
    return Rotary(
        kind, theta, factor=required["factor"],
        original_positions=given.count("original_max_position_embeddings",
                                       scaling.count("original_max_position_embeddings", positions)),
        low_frequency_factor=scaling.number("low_freq_factor", 1.0),
        high_frequency_factor=scaling.number("high_freq_factor", 4.0),
        beta_fast=scaling.number("beta_fast", 32.0), beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", default=True),
        amplitude=yarn_amplitude(scaling, required["factor"]) if kind == "yarn" else 1.0,
        share=share)


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
