"""Tests of the figures of the benchmark of invalid adapters."""

import json
from array import array
from collections import Counter

import pytest

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.experiments.invalid_adapters import (
    InvalidAdaptersSettings,
    TokenGapObserver,
    TurnResult,
    compute_ratios,
    format_error_counts,
    format_ratios,
    format_table,
    make_point,
    make_summary,
    normalize_error,
)

ALONE_TURN = TurnResult([0.01] * 98 + [0.02] * 2, 2.0)
BESIDE_TURN = TurnResult([0.02] * 98 + [0.03] * 2, 4.0, Counter({424: 20, 200: 1}),
                         Counter({"it is cut": 15, "it is long": 5}))


def test_ratios_compare_with_the_turn_before() -> None:
    first, other = make_point(ALONE_TURN), make_point(BESIDE_TURN)
    assert (first.p50_ms, first.tokens_per_second, first.refused_per_second) == (10.0, 50.0, 0.0)
    assert (other.most_ms, other.tokens_per_second, other.refused_per_second) == (30.0, 25.0, 5.0)
    assert compute_ratios([(first, other), (first, first)], "p50_ms") == [2.0, 1.0]


def test_turn_without_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="ask for more requests, or longer turns"):
        make_point(TurnResult(seconds=1.0))


def test_summary_and_table_contain_the_figures() -> None:
    summary = json.loads(json.dumps(make_summary(InvalidAdaptersSettings(), [(ALONE_TURN, BESIDE_TURN)] * 3)))
    assert (summary["p50_ratio"], summary["refused"], summary["taken"]) == (2.0, 60, 3)
    assert summary["reasons"] == {"it is cut": 45, "it is long": 15}
    pairs = [(make_point(ALONE_TURN), make_point(BESIDE_TURN))] * 2
    assert [line.split()[0] for line in format_table(pairs).splitlines()[1:]] == ["alone", "beside"] * 2
    assert format_ratios(pairs).splitlines()[0] == "p50 beside / alone: 2.000, 2.000, median 2.000"
    assert format_error_counts(BESIDE_TURN.error_counts,
                               BESIDE_TURN.status_counts).splitlines()[:2] == ["answered: 1 with 200, 20 with 424",
                                                                               "      15 it is cut"]


@pytest.mark.parametrize(("error", "kind"), [
    ("Request failed during generation: the adapter spoiled-7: the adapter 'spoiled-7' cannot be served: "
     "adapter_config.json is not JSON", "the adapter ... cannot be served: ... is not JSON"),
    ("/a/b/adapter_model.safetensors: its header must have 2 to 100 bytes, it claims 4,711",
     "... its header must have ... to ... bytes, it claims ...")])
def test_error_reasons_are_generalized(error: str, kind: str) -> None:
    assert normalize_error(error, "spoiled-7") == kind


def make_stream_record(number: int, *times: float, error: str = "") -> RequestRecord:
    return RequestRecord(PlannedRequest(number, "a", 3), 0.0, times=array("d", times), error=error)


def test_gaps_are_added_to_the_current_turn_once_every_stream_has_a_token() -> None:
    observer = TokenGapObserver(2)
    observer.on_token(make_stream_record(0, 1.0))
    assert not observer.all_started.is_set()
    observer.on_token(make_stream_record(1, 1.5))
    assert observer.all_started.is_set()
    observer.measurements = turn = TurnResult()
    observer.on_token(make_stream_record(0, 1.0, 1.25))
    assert (turn.token_gaps, observer.measurements) == ([0.25], turn)


def test_failed_stream_ends_the_benchmark() -> None:
    observer = TokenGapObserver(1)
    observer.on_request_ended(make_stream_record(0))
    observer.raise_failure()
    observer.on_request_ended(make_stream_record(0, error="out of luck"))
    with pytest.raises(ValueError, match="a stream without an adapter failed: out of luck"):
        observer.raise_failure()
