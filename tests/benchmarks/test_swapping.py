"""The benchmark of adapters through a server: what it makes of what was heard."""

import json

from benchmarks.swapping import MIXED, SAME, Heard, Settings, adapter_name, point, summary, table, variants


def test_a_cost_is_a_share_of_the_same_turns_throughput() -> None:
    turns = [{0: Heard(100, [0.01]), 8: Heard(80, [0.01, 0.02])}, {0: Heard(50, [0.01]), 8: Heard(45, [0.01, 0.03])}]
    found = point("stay", 8, turns, seconds=2.0)
    assert (found.tokens_per_second, round(found.cost_percent, 1), found.gap_most_ms) == (31.25, 15.0, 30.0)


def test_what_it_says_last() -> None:
    turns = [{0: Heard(100, [0.01]), 8: Heard(80, [0.01])}]
    points = [point(variant.name, number, turns, 1.0) for variant in variants(Settings()) for number in (0, 8)]
    assert [line.split()[0] for line in table(points).splitlines()] == ["adapters", *3 * ["0", "8"]]
    told = json.loads(json.dumps(summary(Settings(), points, "2025-01-31")))
    assert told["cost_percent"] == {"8": 20.0}


def test_adapters_are_named_by_their_ranks() -> None:
    assert [adapter_name(MIXED, number) for number in (0, 5)] == ["rank-8-0", "rank-16-5"]
    assert adapter_name(SAME, 5) == "rank-16-5"
