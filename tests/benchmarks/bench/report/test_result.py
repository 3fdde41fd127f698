"""Tests of the JSON and CSV files of a run."""

import csv
import json
from io import StringIO
from math import inf, nan

from support.fake_bench_results import (
    make_bench_result,
    make_rejected_record,
    make_sample_result,
    make_streamed_record,
    make_unstreamed_record,
)

from benchmarks.bench.report.result import CSV_COLUMNS, to_csv, to_json, to_json_value
from benchmarks.bench.report.server_comparison import MetricComparison


def test_json_contains_results_and_comparison() -> None:
    report = json.loads(to_json([make_sample_result("A"), make_sample_result("B")],
                                [MetricComparison("tokens/s", "higher", (1.2, 1.4, 1.3), 3)]))
    first = report["results"][0]
    assert [one["name"] for one in report["results"]] == ["A", "B"]
    assert len(first["records"]) == 41
    assert first["records"][0]["times"] == [0.05, 0.060000000000000005, 0.07, 0.08, 0.09]
    assert (first["summary"]["requests"], first["window"], first["overhead"]["us a token"]) == (41, [0.0, 10.0], 18.2)
    assert report["comparison"] == [{"name": "tokens/s", "better": "higher", "median": 1.3, "least": 1.2, "most": 1.4,
                                     "turns": [1.2, 1.4, 1.3], "turns_in_all": 3}]


def test_non_finite_numbers_are_null() -> None:
    text = to_json([make_bench_result([make_unstreamed_record()], settings={"goal": inf, "least": [-inf, 1.0]})])
    assert "NaN" not in text
    result = json.loads(text)["results"][0]
    assert result["summary"]["first_token"]["p50"] is None
    assert result["settings"] == {"goal": None, "least": [None, 1.0]}


def test_json_is_one_line() -> None:
    assert len(to_json([make_bench_result([make_rejected_record(error="two\nlines")])]).splitlines()) == 1


def test_other_values_are_not_changed() -> None:
    assert to_json_value({"a": (1, 2.5, True), "b": nan}) == {"a": [1, 2.5, True], "b": None}


def read_csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_csv_has_a_line_for_each_request() -> None:
    rows = read_csv_rows(to_csv([make_bench_result([make_streamed_record(sent_at=1.0, first_token_seconds=0.5, gap=0.25,
                                                                         num_tokens=3, number=7, adapter="a")], "B")]))
    assert rows == [dict(zip(CSV_COLUMNS, (
        "B", "7", "a", "1.0", "1.0", "0.5", "2.0", "1.0", "", "3", "3", "0.25", "200", ""), strict=True))]


def test_csv_errors_may_contain_commas_and_newlines() -> None:
    [line] = read_csv_rows(to_csv([make_bench_result([make_rejected_record(error='a, "b"\nc')])]))
    assert (line["error"], line["status"], line["first_token"], line["mean_gap"]) == ('a, "b"\nc', "429", "", "")


def test_prompt_tokens_are_as_the_server_says_or_as_counted() -> None:
    rows = read_csv_rows(to_csv([make_bench_result([make_streamed_record(prompt_tokens=0), make_streamed_record()])]))
    assert [line["prompt_tokens"] for line in rows] == ["0", ""]
