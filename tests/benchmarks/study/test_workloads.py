from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.workloads import (
    FIGURE_OUTPUT_LENGTHS,
    LOAD_OUTPUT_LENGTHS,
    STUDY_WORKLOADS,
    make_closed_loop_requests,
    make_poisson_requests,
    make_solo_requests,
    make_study_requests,
)

SEEDS = st.integers(0, 1000)


@given(st.sampled_from(STUDY_WORKLOADS), SEEDS)
def test_same_seed_gives_the_same_requests(name: str, seed: int) -> None:
    requests = make_study_requests(name, seed, 100, 1.0)
    assert requests == make_study_requests(name, seed, 100, 1.0)
    assert requests != make_study_requests(name, seed + 1, 100, 1.0)
    assert [request.number for request in requests] == list(range(100))
    assert [request.prompt for request in requests[:2]] == ["Request 0", "Request 1"]


@given(st.sampled_from(STUDY_WORKLOADS), SEEDS, st.sampled_from((0.5, 2.0, 8.0)))
def test_speed_divides_only_the_times(name: str, seed: int, speed: float) -> None:
    usual, faster = make_study_requests(name, seed, 50, 1.0), make_study_requests(name, seed, 50, speed)
    assert [request.at for request in faster] == pytest.approx([request.at / speed for request in usual])
    assert [request.output_tokens for request in faster] == [request.output_tokens for request in usual]


@given(SEEDS)
def test_figure_workload_has_bursts_of_five_and_limited_lengths(seed: int) -> None:
    requests = make_study_requests("figure", seed, 100, 1.0)
    counts = Counter(request.output_tokens for request in requests)
    assert counts.keys() <= set(FIGURE_OUTPUT_LENGTHS)
    assert max(counts.values()) <= 10
    pauses = [after.at - before.at for before, after in pairwise(requests)]
    assert [index for index, pause in enumerate(pauses, 1) if pause] == list(range(5, 100, 5))
    assert max(pauses) <= 5


def test_figure_workload_has_ten_of_each_length() -> None:
    assert Counter(request.output_tokens for request in make_study_requests("figure", 0, 1000, 1.0)) == dict.fromkeys(
        FIGURE_OUTPUT_LENGTHS, 10)


@given(SEEDS)
def test_other_workloads_have_the_lengths_of_the_study(seed: int) -> None:
    assert {request.output_tokens for request in make_study_requests("head", seed, 100, 1.0)} <= {1, 25, 100}
    assert all(1 <= request.output_tokens <= 200 for request in make_study_requests("readme", seed, 100, 1.0))
    assert make_study_requests("readme", seed, 100, 1.0)[-1].at == pytest.approx(100, rel=0.4)


@given(SEEDS, st.integers(1, 20))
def test_closed_workload_has_equal_lengths_and_unique_prompts(seed: int, rounds: int) -> None:
    requests = make_closed_loop_requests(seed, rounds * len(LOAD_OUTPUT_LENGTHS), 32)
    assert Counter(request.output_tokens for request in requests) == dict.fromkeys(LOAD_OUTPUT_LENGTHS, rounds)
    assert len({request.prompt for request in requests}) == len(requests)
    assert {len(request.prompt) for request in requests} == {32}


def test_poisson_arrivals_rise_at_their_rate() -> None:
    requests = make_poisson_requests(0, 2000, 4.0, 32)
    assert [request.at for request in requests] == sorted(request.at for request in requests)
    assert requests[-1].at == pytest.approx(500, rel=0.1)
    assert [request.prompt for request in requests] == [request.prompt
                                                        for request in make_closed_loop_requests(0, 2000, 32)]


@pytest.mark.parametrize("kind", ["short", "long"])
def test_solo_workload_has_every_length_equally_often(kind: str) -> None:
    assert set(Counter(request.output_tokens for request in make_solo_requests(kind, 3, 32)).values()) == {3}
