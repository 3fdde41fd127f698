"""Tests of router/validation/bounds.py."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.validation.bounds import round_to_float32, validate_fraction, validate_penalty, validate_positive

# Halfway between two neighbours of float32, numbers are rounded to the even one.
HALF_OF_SMALLEST = 2.0**-150  # rounded to 0
HALFWAY_TO_ONE = 1.0 - 2.0**-25  # rounded to 1
HALFWAY_ABOVE_TWO = 2.0 + 2.0**-23  # rounded to 2
HALFWAY_ABOVE_LARGEST = 2.0**128 - 2.0**103  # rounded to infinity
HALFWAY_NUMBERS = [sign * number for sign in (1.0, -1.0) for number in (
    HALF_OF_SMALLEST, HALFWAY_TO_ONE, HALFWAY_ABOVE_TWO, HALFWAY_ABOVE_LARGEST)]
NUMBERS = (st.floats() | st.floats(-3.0, 3.0) | st.sampled_from(HALFWAY_NUMBERS)
           | st.builds(math.nextafter, st.sampled_from(HALFWAY_NUMBERS), st.sampled_from([-math.inf, math.inf])))


VALIDATORS: dict[Callable[[str, float], float], Callable[[float], bool]] = {
    validate_positive: lambda rounded: rounded > 0.0,
    validate_penalty: lambda rounded: -2.0 <= rounded <= 2.0,
    validate_fraction: lambda rounded: 0.0 < rounded < 1.0,
}


def get_error(validate: Callable[..., float], *arguments: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as rejected:
        validate("name", *arguments)
    return rejected.value


def numpy_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@given(NUMBERS)
def test_numbers_are_rounded_as_numpy_rounds_them(value: float) -> None:
    if math.isfinite(expected := numpy_float32(value)):
        assert round_to_float32("name", value) == expected
    else:
        assert str(get_error(round_to_float32, value)) == f"`name` must be a finite 32-bit number, got {value}"


@pytest.mark.parametrize("validate", VALIDATORS)
@given(value=NUMBERS)
def test_a_number_is_accepted_if_its_rounded_value_is_within_the_bounds(
        validate: Callable[[str, float], float], value: float) -> None:
    rounded = numpy_float32(value)
    if math.isfinite(rounded) and VALIDATORS[validate](rounded):
        assert validate("name", value) == rounded
    else:
        error = get_error(validate, value)
        assert (error.param, str(error).split(";")[0].rsplit(" ", 1)[1]) == ("name", str(value))


def test_integers_are_numbers() -> None:
    assert (validate_positive("name", 3), validate_penalty("name", -2)) == (3.0, -2.0)
    assert str(get_error(validate_positive, 2**128)) == f"`name` must be a finite 32-bit number, got {2**128}"


@pytest.mark.parametrize(("validate", "accepted", "rejected"), [
    (validate_positive, math.nextafter(HALF_OF_SMALLEST, 1.0), HALF_OF_SMALLEST),
    (validate_positive, math.nextafter(HALFWAY_ABOVE_LARGEST, 0.0), HALFWAY_ABOVE_LARGEST),
    (validate_penalty, HALFWAY_ABOVE_TWO, math.nextafter(HALFWAY_ABOVE_TWO, 3.0)),
    (validate_penalty, -HALFWAY_ABOVE_TWO, math.nextafter(-HALFWAY_ABOVE_TWO, -3.0)),
    (validate_fraction, math.nextafter(HALF_OF_SMALLEST, 1.0), HALF_OF_SMALLEST),
    (validate_fraction, math.nextafter(HALFWAY_TO_ONE, 0.0), HALFWAY_TO_ONE),
])
def test_neighbouring_numbers_on_both_sides_of_a_bound(validate: Callable[[str, float], float], accepted: float,
                                                       rejected: float) -> None:
    assert validate("name", accepted) == numpy_float32(accepted)
    get_error(validate, rejected)


def test_error_names_the_bounds_and_the_value_as_it_was_given() -> None:
    assert str(get_error(validate_positive, -0.1)) == "`name` must be above 0, got -0.1"
    assert str(get_error(validate_penalty, 2.1)) == "`name` must be at least -2.0 and at most 2.0, got 2.1"
    assert str(get_error(validate_fraction, 1.1)) == (
        "`name` must be above 0 and below 1, got 1.1; leave it out to keep all candidates")
