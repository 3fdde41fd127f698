"""Tests of benchmarks/bench/load/workload.py."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.prompts import count_words
from benchmarks.bench.load.record import Ask
from benchmarks.bench.load.workload import Workload, make


def asks(**given) -> list[Ask]:
    return asyncio.run(make(Workload(**given), count_words))


@given(st.integers(), st.sampled_from([{}, {"rate": 3.0}, {"rate": 3.0, "burst": 4}, {"wait": 1.0}]))
def test_the_same_seed_asks_the_same(seed: int, how) -> None:
    given = {"requests": 20, "prompt_tokens": "5-40", "output_tokens": "1,25,100", "seed": seed, **how}
    assert asks(**given) == asks(**given)


def test_salt_changes_the_prompts_and_nothing_else() -> None:
    given = {"requests": 20, "prompt_tokens": "5-40", "output_tokens": "1-100", "rate": 2.0}
    plain, salted = asks(**given), asks(**given, salt="b")
    assert not {ask.prompt for ask in plain} & {ask.prompt for ask in salted}
    assert [(ask.at, ask.prompt_tokens, ask.output_tokens) for ask in plain] == [
        (ask.at, ask.prompt_tokens, ask.output_tokens) for ask in salted]


def test_no_prompt_begins_like_another_but_for_what_is_shared() -> None:
    made = asks(requests=30, prompt_tokens="20", shared_prefix=8, prefixes=3)
    beginnings = {" ".join(ask.prompt.split()[:8]) for ask in made}
    assert len(beginnings) == 3
    assert len({" ".join(ask.prompt.split()[:9]) for ask in made}) == 30
    assert {ask.prompt_tokens for ask in made} == {20}


def test_a_shared_prefix_leaves_room_for_something_of_ones_own() -> None:
    with pytest.raises(ValueError, match="--shared-prefix 20 is part of --prompt-tokens"):
        asks(requests=3, prompt_tokens="20", shared_prefix=20)


def test_only_in_an_open_loop_a_request_is_due() -> None:
    assert {ask.at for ask in asks(requests=3)} == {None}
    assert [ask.at for ask in asks(requests=3, rate=2.0, even=True)] == [0.0, 0.5, 1.0]


def test_it_is_limited_by_a_number_or_a_trace() -> None:
    assert not Workload(rate=4.0, seconds=10.0).is_limited
    assert Workload(rate=4.0, seconds=10.0, requests=7).is_limited
    assert Workload(trace="a file").is_limited


def test_adapters_take_turns() -> None:
    assert [ask.adapter for ask in asks(requests=5, adapters=("a", "b"))] == ["a", "b", "a", "b", "a"]


def test_requests_end_with_the_time_or_their_number() -> None:
    assert len(asks(rate=10.0, even=True, seconds=2.0)) == 20
    assert len(asks(rate=10.0, even=True, seconds=2.0, requests=7)) == 7


def test_a_trace_says_when_and_how_much_and_may_be_played_faster(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("".join(f'{{"at": {at}, "prompt_tokens": {at + 3}, "output_tokens": 4}}\n' for at in range(4)))
    made = asks(trace=str(path), speed=2.0)
    assert [(ask.at, ask.prompt_tokens, ask.output_tokens) for ask in made] == [
        (0.0, 3, 4), (0.5, 4, 4), (1.0, 5, 4), (1.5, 6, 4)]


def test_descending_asks_for_the_most_first_and_numbered_prompts_are_the_studys() -> None:
    made = asks(requests=30, output_tokens="1,25,100", descend=True, numbered=True)
    outputs = [ask.output_tokens for ask in made]
    assert outputs == sorted(outputs, reverse=True)
    assert made[7].prompt == "Request 7"


def test_prompts_of_a_file_go_round_and_may_say_how_long_their_answers_are(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('one\n{"prompt": "two", "output_tokens": 5}\n')
    assert [(ask.prompt, ask.output_tokens) for ask in asks(requests=3, prompts=str(path))] == [
        ("one", 64), ("two", 5), ("one", 64)]
