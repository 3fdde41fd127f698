"""Tests of the figures and the floods of the benchmark of a hostile tenant."""

import json

import pytest

from benchmarks.experiments.hostile_tenant import COLUMNS, FLOODS, FloodOutcome, Latencies
from benchmarks.harness.experiment import format_columns


def test_p99_is_of_first_tokens_and_of_gaps() -> None:
    assert Latencies([0.1] * 99 + [0.5], [0.2] * 98 + [0.6, 0.7]).percentiles() == (0.1, 0.6)


@pytest.mark.parametrize(("first_token", "gap", "is_within"), [
    (0.139, 0.079, True), (0.141, 0.05, False), (0.1, 0.081, False)])
def test_flood_may_cost_a_fifth_and_a_step(first_token: float, gap: float, is_within: bool) -> None:
    outcome = FloodOutcome("tools", 0.1, first_token, 0.05, gap, 7)
    assert outcome.is_within_bounds is is_within
    assert format_columns(COLUMNS, [outcome.to_row()]).split()[-1] == ("yes" if is_within else "no")


@pytest.mark.parametrize("name", FLOODS)
def test_each_request_of_a_flood_is_another(name: str) -> None:
    path, make_body = FLOODS[name]
    assert path.startswith("/")
    assert json.dumps(make_body(1)) != json.dumps(make_body(2))
