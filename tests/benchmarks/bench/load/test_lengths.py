"""Tests of benchmarks/bench/load/lengths.py."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.lengths import parse_length_distribution

FLAG_NAME = "--output-tokens"


@given(st.integers(1, 100), st.integers(0, 100), st.integers())
def test_range_lengths_are_within_the_range(minimum: int, width: int, seed: int) -> None:
    assert minimum <= parse_length_distribution(f"{minimum}-{minimum + width}",
                                                FLAG_NAME)(Random(seed)) <= minimum + width


def test_list_lengths_are_all_drawn() -> None:
    draw, random = parse_length_distribution("1,25,100", FLAG_NAME), Random(0)
    assert {draw(random) for _ in range(100)} == {1, 25, 100}


def test_single_length_is_constant() -> None:
    assert parse_length_distribution("64", FLAG_NAME)(Random(0)) == 64


def test_normal_lengths_are_near_the_mean_and_at_least_one() -> None:
    draw, random = parse_length_distribution("normal:100:100", FLAG_NAME), Random(0)
    lengths = [draw(random) for _ in range(2000)]
    assert min(lengths) == 1
    assert 95 < sum(lengths) / len(lengths) < 120


@pytest.mark.parametrize("words", ["", "a", "10-5", "0", "0-4", "1,0", "normal:1", "normal:1.2.3:4", "-3"])
def test_invalid_lengths_are_reported_with_the_flag(words: str) -> None:
    with pytest.raises(ValueError, match=FLAG_NAME):
        parse_length_distribution(words, FLAG_NAME)
