from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.workloads import FIGURE_LENGTHS, LENGTHS, PRESETS, alone, closed, poisson, preset

SEEDS = st.integers(0, 1000)


@given(st.sampled_from(PRESETS), SEEDS)
def test_a_seed_gives_the_same_asks_again(name: str, seed: int) -> None:
    asks = preset(name, seed, 100, 1.0)
    assert asks == preset(name, seed, 100, 1.0)
    assert asks != preset(name, seed + 1, 100, 1.0)
    assert [ask.number for ask in asks] == list(range(100))
    assert [ask.prompt for ask in asks[:2]] == ["Request 0", "Request 1"]


@given(st.sampled_from(PRESETS), SEEDS, st.sampled_from((0.5, 2.0, 8.0)))
def test_speed_divides_all_times_and_changes_nothing_else(name: str, seed: int, speed: float) -> None:
    usual, faster = preset(name, seed, 50, 1.0), preset(name, seed, 50, speed)
    assert [ask.at for ask in faster] == pytest.approx([ask.at / speed for ask in usual])
    assert [ask.output_tokens for ask in faster] == [ask.output_tokens for ask in usual]


@given(SEEDS)
def test_the_figures_workload_comes_in_bursts_of_five_and_takes_no_length_more_than_ten_times(seed: int) -> None:
    asks = preset("figure", seed, 100, 1.0)
    counts = Counter(ask.output_tokens for ask in asks)
    assert counts.keys() <= set(FIGURE_LENGTHS)
    assert max(counts.values()) <= 10
    pauses = [after.at - before.at for before, after in pairwise(asks)]
    assert [place for place, pause in enumerate(pauses, 1) if pause] == list(range(5, 100, 5))
    assert max(pauses) <= 5


def test_the_figures_workload_has_ten_of_each_length() -> None:
    assert Counter(ask.output_tokens for ask in preset("figure", 0, 1000, 1.0)) == dict.fromkeys(FIGURE_LENGTHS, 10)


@given(SEEDS)
def test_the_other_workloads_ask_for_what_the_study_says(seed: int) -> None:
    assert {ask.output_tokens for ask in preset("head", seed, 100, 1.0)} <= {1, 25, 100}
    assert all(1 <= ask.output_tokens <= 200 for ask in preset("readme", seed, 100, 1.0))
    assert preset("readme", seed, 100, 1.0)[-1].at == pytest.approx(100, rel=0.4)


@given(SEEDS, st.integers(1, 20))
def test_under_load_every_length_comes_equally_often_and_no_prompt_twice(seed: int, rounds: int) -> None:
    asks = closed(seed, rounds * len(LENGTHS), 32)
    assert Counter(ask.output_tokens for ask in asks) == dict.fromkeys(LENGTHS, rounds)
    assert len({ask.prompt for ask in asks}) == len(asks)
    assert {len(ask.prompt) for ask in asks} == {32}


def test_poisson_arrivals_rise_and_come_at_their_rate() -> None:
    asks = poisson(0, 2000, 4.0, 32)
    assert [ask.at for ask in asks] == sorted(ask.at for ask in asks)
    assert asks[-1].at == pytest.approx(500, rel=0.1)
    assert [ask.prompt for ask in asks] == [ask.prompt for ask in closed(0, 2000, 32)]


@pytest.mark.parametrize("kind", ["short", "long"])
def test_alone_every_length_is_asked_for_as_often(kind: str) -> None:
    assert set(Counter(ask.output_tokens for ask in alone(kind, 3, 32)).values()) == {3}
