"""Tests of benchmarks/bench/load/lengths.py."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.lengths import lengths

FLAG = "--output-tokens"


@given(st.integers(1, 100), st.integers(0, 100), st.integers())
def test_lengths_between_two_are_between_them(least: int, more: int, seed: int) -> None:
    assert least <= lengths(f"{least}-{least + more}", FLAG)(Random(seed)) <= least + more


def test_all_of_a_list_are_drawn_and_nothing_else() -> None:
    draw, random = lengths("1,25,100", FLAG), Random(0)
    assert {draw(random) for _ in range(100)} == {1, 25, 100}


def test_a_single_number_is_always_the_same() -> None:
    assert lengths("64", FLAG)(Random(0)) == 64


def test_normal_lengths_are_about_the_mean_and_at_least_one() -> None:
    draw, random = lengths("normal:100:100", FLAG), Random(0)
    drawn = [draw(random) for _ in range(2000)]
    assert min(drawn) == 1
    assert 95 < sum(drawn) / len(drawn) < 120


@pytest.mark.parametrize("words", ["", "a", "10-5", "0", "0-4", "1,0", "normal:1", "normal:1.2.3:4", "-3"])
def test_what_is_no_length_is_said_with_the_flag(words: str) -> None:
    with pytest.raises(ValueError, match=FLAG):
        lengths(words, FLAG)
