"""Tests of the figures of the comparison of flags."""

import pytest

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.experiments.flag_comparison import (
    FIGURES,
    RoundMetrics,
    VariantRounds,
    format_table,
    raise_wrong_length,
)

DEFAULT_ROUNDS = [RoundMetrics(90.0, 1.0, 2.0, 0.2), RoundMetrics(50.0, 2.0, 4.0, 0.4),
                  RoundMetrics(99.0, 1.1, 2.2, 0.1)]
VARIANT_ROUNDS = [RoundMetrics(100.0, 2.0, 2.0, 0.4), RoundMetrics(40.0, 1.0, 4.0, 0.4),
                  RoundMetrics(110.0, 1.1, 1.1, 0.2)]


def test_ratios_are_those_of_rounds_side_by_side() -> None:
    variant = VariantRounds("--max-batch-size 8", VARIANT_ROUNDS, DEFAULT_ROUNDS)
    assert [variant.median(name) for name in FIGURES] == [100.0, 1.1, 2.0, 0.4]
    assert [variant.default_ratio(name) for name in FIGURES] == [0.9, 1.0, 1.0, 0.5]
    assert variant.to_json()["default_ratio"] == {
        "tokens_per_second": 0.9, "first_token_p50": 1.0, "first_token_p99": 1.0, "gap_p99": 0.5}


def test_table_has_a_row_for_each_variant() -> None:
    variants = [VariantRounds("default", DEFAULT_ROUNDS, DEFAULT_ROUNDS),
                VariantRounds("--max-batch-size 8", VARIANT_ROUNDS, DEFAULT_ROUNDS)]
    title, _, *rows = format_table(16, variants).splitlines()
    assert title == "16 streams"
    assert [row.split()[-7:] for row in rows] == [["90.0", "1.10", "2.20", "0.200", "1.000", "1.00", "1.00"],
                                                  ["100.0", "1.10", "2.00", "0.400", "0.900", "1.00", "0.50"]]


def test_answer_of_another_length_makes_the_window_invalid() -> None:
    request = PlannedRequest(0, "time", output_tokens=128)
    raise_wrong_length([RequestRecord(request, 0.0, num_tokens=128)])
    with pytest.raises(ValueError, match="an answer has 90 tokens, where 128 were asked for"):
        raise_wrong_length([RequestRecord(request, 0.0, num_tokens=90)])
