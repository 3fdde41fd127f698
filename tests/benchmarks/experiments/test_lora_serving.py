"""Tests of the figures of the benchmark of adapters on a server."""

import json

from benchmarks.experiments.lora_serving import (
    EQUAL_RANKS,
    MIXED_RANKS,
    LoraServingSettings,
    TurnTimings,
    VariantResults,
    make_adapter_name,
    make_point,
    make_summary,
    make_variants,
)


def test_cost_is_relative_to_the_same_turn() -> None:
    turns = [{0: TurnTimings(100, 2.0, [0.01]), 8: TurnTimings(100, 2.5, [0.01, 0.02])},
             {0: TurnTimings(100, 4.0, [0.01]), 8: TurnTimings(90, 4.0, [0.01, 0.03])}]
    point = make_point("stay", 8, turns)
    assert (point.tokens_per_second, round(point.cost_percent, 1), point.gap_most_ms) == (31.25, 15.0, 30.0)


def test_summary_and_table_contain_the_figures() -> None:
    turns = [{0: TurnTimings(100, 1.0, [0.01]), 8: TurnTimings(80, 1.0, [0.01])}]
    results = [VariantResults(variant.name, 0.25, 0.013, [make_point(variant.name, number, turns) for number in (0, 8)])
               for variant in make_variants(LoraServingSettings())]
    head, *lines = results[0].format_report().splitlines()
    assert head == "adapters that stay, a new one every 0.25 s (others had at most 1.3% of the processors):"
    assert [line.split()[0] for line in lines] == ["adapters", "0", "8"]
    summary = json.loads(json.dumps(make_summary(LoraServingSettings(), results)))
    assert (summary["cost_percent"], summary["seconds_per_new"]["take turns"]) == ({"8": 20.0}, 0.25)
    assert len(summary["points"]) == 6


def test_adapters_are_named_by_their_ranks() -> None:
    assert [make_adapter_name(MIXED_RANKS, number) for number in (0, 5)] == ["rank-8-0", "rank-16-5"]
    assert make_adapter_name(EQUAL_RANKS, 5) == "rank-16-5"
