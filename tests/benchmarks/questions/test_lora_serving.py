"""Tests of the figures of the benchmark of adapters on a server."""

import json

from benchmarks.questions.lora_serving import (
    MIXED,
    SAME,
    Found,
    Heard,
    Settings,
    adapter_name,
    point,
    summary,
    variants,
)


def test_a_cost_is_a_share_of_the_same_turns_throughput() -> None:
    turns = [{0: Heard(100, 2.0, [0.01]), 8: Heard(100, 2.5, [0.01, 0.02])},
             {0: Heard(100, 4.0, [0.01]), 8: Heard(90, 4.0, [0.01, 0.03])}]
    found = point("stay", 8, turns)
    assert (found.tokens_per_second, round(found.cost_percent, 1), found.gap_most_ms) == (31.25, 15.0, 30.0)


def test_what_it_says_last() -> None:
    turns = [{0: Heard(100, 1.0, [0.01]), 8: Heard(80, 1.0, [0.01])}]
    found = [Found(variant.name, 0.25, 0.013, [point(variant.name, number, turns) for number in (0, 8)])
             for variant in variants(Settings())]
    head, *lines = found[0].told().splitlines()
    assert head == "adapters that stay, a new one every 0.25 s (others had at most 1.3% of the processors):"
    assert [line.split()[0] for line in lines] == ["adapters", "0", "8"]
    told = json.loads(json.dumps(summary(Settings(), found)))
    assert (told["cost_percent"], told["seconds_per_new"]["take turns"]) == ({"8": 20.0}, 0.25)
    assert len(told["points"]) == 6


def test_adapters_are_named_by_their_ranks() -> None:
    assert [adapter_name(MIXED, number) for number in (0, 5)] == ["rank-8-0", "rank-16-5"]
    assert adapter_name(SAME, 5) == "rank-16-5"
