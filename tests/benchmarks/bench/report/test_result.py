"""Tests of the JSON and CSV files of a run."""

import csv
import json
from io import StringIO
from math import inf, nan

from support.fake_bench_results import answer, refusal, result, run, whole

from benchmarks.bench.report.result import COLUMNS, plain, to_csv, to_json
from benchmarks.bench.report.versus import Ratio


def test_json_has_everything() -> None:
    said = json.loads(to_json([run("A"), run("B")], [Ratio("tokens/s", "higher", (1.2, 1.4, 1.3), 3)]))
    first = said["results"][0]
    assert [one["name"] for one in said["results"]] == ["A", "B"]
    assert len(first["records"]) == 41
    assert first["records"][0]["times"] == [0.05, 0.060000000000000005, 0.07, 0.08, 0.09]
    assert (first["summary"]["requests"], first["window"], first["overhead"]["us a token"]) == (41, [0.0, 10.0], 18.2)
    assert said["comparison"] == [{"name": "tokens/s", "better": "higher", "median": 1.3, "least": 1.2, "most": 1.4,
                                   "turns": [1.2, 1.4, 1.3], "turns_in_all": 3}]


def test_what_is_no_number_is_null() -> None:
    text = to_json([result([whole()], settings={"goal": inf, "least": [-inf, 1.0]})])
    assert "NaN" not in text
    said = json.loads(text)["results"][0]
    assert said["summary"]["first_token"]["p50"] is None
    assert said["settings"] == {"goal": None, "least": [None, 1.0]}


def test_json_is_one_line() -> None:
    assert len(to_json([result([refusal(error="two\nlines")])]).splitlines()) == 1


def test_numbers_stay_as_they_are() -> None:
    assert plain({"a": (1, 2.5, True), "b": nan}) == {"a": [1, 2.5, True], "b": None}


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_csv_has_a_line_for_each_request() -> None:
    made = lines(to_csv([result([answer(sent=1.0, first=0.5, gap=0.25, tokens=3, number=7, adapter="a")], "B")]))
    assert made == [dict(zip(COLUMNS, (
        "B", "7", "a", "1.0", "1.0", "0.5", "2.0", "1.0", "", "3", "3", "0.25", "200", ""), strict=True))]


def test_errors_may_hold_commas_and_lines() -> None:
    [line] = lines(to_csv([result([refusal(error='a, "b"\nc')])]))
    assert (line["error"], line["status"], line["first_token"], line["mean_gap"]) == ('a, "b"\nc', "429", "", "")


def test_prompts_are_as_long_as_the_server_says_or_else_as_was_counted() -> None:
    made = lines(to_csv([result([answer(prompt_tokens=0), answer()])]))
    assert [line["prompt_tokens"] for line in made] == ["0", ""]
