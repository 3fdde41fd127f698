"""Tests of the figures of the benchmark of invalid adapters."""

import json
from collections import Counter

import pytest

from benchmarks.questions.invalid_adapters import Settings, Turn, compared, point, ratios, reason, summary, table, told

ALONE = Turn([0.01] * 98 + [0.02] * 2, 2.0)
BESIDE = Turn([0.02] * 98 + [0.03] * 2, 4.0, Counter({424: 20, 200: 1}), Counter({"it is cut": 15, "it is long": 5}))


def test_a_ratio_is_of_the_turn_before() -> None:
    first, other = point(ALONE), point(BESIDE)
    assert (first.p50_ms, first.tokens_per_second, first.refused_per_second) == (10.0, 50.0, 0.0)
    assert (other.most_ms, other.tokens_per_second, other.refused_per_second) == (30.0, 25.0, 5.0)
    assert ratios([(first, other), (first, first)], "p50_ms") == [2.0, 1.0]


def test_a_turn_without_tokens_says_nothing() -> None:
    with pytest.raises(ValueError, match="ask for more requests, or longer turns"):
        point(Turn(seconds=1.0))


def test_what_it_says_last() -> None:
    said = json.loads(json.dumps(summary(Settings(), [(ALONE, BESIDE)] * 3)))
    assert (said["p50_ratio"], said["refused"], said["taken"]) == (2.0, 60, 3)
    assert said["reasons"] == {"it is cut": 45, "it is long": 15}
    pairs = [(point(ALONE), point(BESIDE))] * 2
    assert [line.split()[0] for line in table(pairs).splitlines()[1:]] == ["alone", "beside"] * 2
    assert compared(pairs).splitlines()[0] == "p50 beside / alone: 2.000, 2.000, median 2.000"
    assert told(BESIDE.reasons, BESIDE.statuses).splitlines()[:2] == ["answered: 1 with 200, 20 with 424",
                                                                     "      15 it is cut"]


@pytest.mark.parametrize(("error", "kind"), [
    ("Request failed during generation: the adapter spoiled-7: the adapter 'spoiled-7' cannot be served: "
     "adapter_config.json is not JSON", "the adapter ... cannot be served: ... is not JSON"),
    ("/a/b/adapter_model.safetensors: its header must have 2 to 100 bytes, it claims 4,711",
     "... its header must have ... to ... bytes, it claims ...")])
def test_reasons_are_of_a_kind(error: str, kind: str) -> None:
    assert reason(error, "spoiled-7") == kind
