"""Tests of benchmarks/bench/load/workload.py."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.prompts import count_words
from benchmarks.bench.load.request_records import PlannedRequest
from benchmarks.bench.load.workload import WorkloadSettings, make_requests, parse_length_distribution

FLAG_NAME = "--output-tokens"


def make_bench_requests(**workload_fields) -> list[PlannedRequest]:
    return asyncio.run(make_requests(WorkloadSettings(**workload_fields), count_words))


@given(st.integers(), st.sampled_from([{}, {"rate": 3.0}, {"rate": 3.0, "burst": 4}, {"wait": 1.0}]))
def test_same_seed_gives_the_same_requests(seed: int, arrival_parameters) -> None:
    parameters = {"requests": 20, "prompt_tokens": "5-40", "output_tokens": "1,25,100", "seed": seed,
                  **arrival_parameters}
    assert make_bench_requests(**parameters) == make_bench_requests(**parameters)


def test_salt_changes_only_the_prompts() -> None:
    parameters = {"requests": 20, "prompt_tokens": "5-40", "output_tokens": "1-100", "rate": 2.0}
    plain, salted = make_bench_requests(**parameters), make_bench_requests(**parameters, salt="b")
    assert not {request.prompt for request in plain} & {request.prompt for request in salted}
    assert [(request.at, request.prompt_tokens, request.output_tokens) for request in plain] == [
        (request.at, request.prompt_tokens, request.output_tokens) for request in salted]


def test_prompts_differ_after_the_shared_prefix() -> None:
    bench_requests = make_bench_requests(requests=30, prompt_tokens="20", shared_prefix=8, prefixes=3)
    prefixes = {" ".join(request.prompt.split()[:8]) for request in bench_requests}
    assert len(prefixes) == 3
    assert len({" ".join(request.prompt.split()[:9]) for request in bench_requests}) == 30
    assert {request.prompt_tokens for request in bench_requests} == {20}


def test_shared_prefix_must_be_shorter_than_the_prompt() -> None:
    with pytest.raises(ValueError, match="--shared-prefix 20 is part of --prompt-tokens"):
        make_bench_requests(requests=3, prompt_tokens="20", shared_prefix=20)


def test_requests_are_due_only_in_an_open_loop() -> None:
    assert {request.at for request in make_bench_requests(requests=3)} == {None}
    assert [request.at for request in make_bench_requests(requests=3, rate=2.0, even=True)] == [0.0, 0.5, 1.0]


def test_workload_is_limited_by_a_number_or_a_trace() -> None:
    assert not WorkloadSettings(rate=4.0, seconds=10.0).can_run_out
    assert WorkloadSettings(rate=4.0, seconds=10.0, requests=7).can_run_out
    assert WorkloadSettings(trace="a file").can_run_out


def test_adapters_alternate() -> None:
    assert [request.adapter
            for request in make_bench_requests(requests=5, adapters=("a", "b"))] == ["a", "b", "a", "b", "a"]


def test_requests_end_with_the_time_or_their_number() -> None:
    assert len(make_bench_requests(rate=10.0, even=True, seconds=2.0)) == 20
    assert len(make_bench_requests(rate=10.0, even=True, seconds=2.0, requests=7)) == 7


def test_trace_sets_times_and_lengths_and_can_be_sped_up(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("".join(f'{{"at": {at}, "prompt_tokens": {at + 3}, "output_tokens": 4}}\n' for at in range(4)))
    bench_requests = make_bench_requests(trace=str(path), speed=2.0)
    assert [(request.at, request.prompt_tokens, request.output_tokens) for request in bench_requests] == [
        (0.0, 3, 4), (0.5, 4, 4), (1.0, 5, 4), (1.5, 6, 4)]


def test_descending_lengths_and_numbered_prompts_are_those_of_the_study() -> None:
    bench_requests = make_bench_requests(requests=30, output_tokens="1,25,100", longest_first=True,
                                         has_numbered_prompts=True)
    outputs = [request.output_tokens for request in bench_requests]
    assert outputs == sorted(outputs, reverse=True)
    assert bench_requests[7].prompt == "Request 7"


def test_prompts_of_a_file_repeat_and_may_set_their_output_length(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('one\n{"prompt": "two", "output_tokens": 5}\n')
    assert [(request.prompt, request.output_tokens)
            for request in make_bench_requests(requests=3, prompts=str(path))] == [("one", 64), ("two", 5), ("one", 64)]


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
