"""Bounds checks of floating-point parameters, done in float32 since that is what the shards receive.

Every error names the field, the bound and the value.
"""

import math
import struct

from router.errors import InvalidRequest


def round_to_float32(name: str, value: float) -> float:
    """Round to float32, so that a value which float32 cannot distinguish from a bound is rejected like the bound."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except (OverflowError, struct.error):  # beyond float32; an int beyond float64
        rounded = math.inf
    if not math.isfinite(rounded):
        raise InvalidRequest(f"`{name}` must be a finite 32-bit number, got {value}")
    return rounded


def validate_positive(name: str, value: float | None) -> float:
    if value is None:
        return 1.0
    rounded = round_to_float32(name, value)
    if rounded <= 0:
        raise InvalidRequest(f"`{name}` must be above 0, got {value}")
    return rounded


def validate_range(name: str, value: float | None, low: float, high: float) -> float:
    if value is None:
        return 0.0
    rounded = round_to_float32(name, value)
    if not low <= rounded <= high:
        raise InvalidRequest(f"`{name}` must be at least {low} and at most {high}, got {value}")
    return rounded


def validate_fraction(name: str, value: float | None) -> float:
    """Check that a value is above 0 and below 1; return 0, which keeps all candidates, if none is given."""
    if value is None:
        return 0.0
    rounded = round_to_float32(name, value)
    if not 0 < rounded < 1:
        raise InvalidRequest(f"`{name}` must be above 0 and below 1, got {value}; leave it out to keep all candidates")
    return rounded
