import json

import pytest

from benchmarks.bench.shards.batch_run import Run, Step
from benchmarks.bench.shards.tables import latencies, markdown, page, point, throughputs, told, wire

RUNS = [Run(Step(0.020, 0.015, 4), (Step(0.010, 0.008, 4), Step(0.012, 0.009, 4))),
        Run(Step(0.040, 0.035, 4), (Step(0.014, 0.010, 4), Step(0.016, 0.011, 4)))]
POINT = point(4, RUNS)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_decodes_are_told_by_step_and_by_run() -> None:
    assert (POINT.decode.count, POINT.decode.mean, POINT.decode.most) == (4, pytest.approx(0.013), 0.016)
    assert (POINT.decode_total.count, POINT.decode_total.least) == (2, pytest.approx(0.022))


def test_throughput_counts_the_tokens_that_came() -> None:
    assert (POINT.prefill_tokens_per_second.most, POINT.prefill_tokens_per_second.least) == (200.0, 100.0)
    assert POINT.decode_tokens_per_second.most == pytest.approx(8 / 0.022)


def test_latencies_are_in_milliseconds() -> None:
    rows = cells(latencies([POINT]))
    assert rows[0] == ["step", "batch size", "average", "lowest", "highest", "p50", "p90", "p99"]
    assert rows[2] == ["prefill", "4", "30.00", "20.00", "40.00", "20.00", "40.00", "40.00"]
    assert [row[0] for row in rows[2:]] == ["prefill", "decode (token)", "decode (total)"]


def test_throughputs_are_in_tokens_a_second() -> None:
    rows = cells(throughputs([POINT]))
    assert rows[2] == ["prefill", "4", "150.00", "100.00", "200.00"]
    assert rows[3][:2] == ["decode", "4"]


def test_the_wire_is_what_a_step_takes_beside_its_forward_pass() -> None:
    assert cells(wire([POINT]))[2:] == [
        ["prefill", "4", "30.000", "25.000", "5.000"], ["decode (token)", "4", "13.000", "9.500", "3.500"]]


def test_columns_of_a_table_are_as_wide_as_their_widest_cell() -> None:
    assert markdown(["step", "n"], [["prefill", "10"]]).splitlines() == [
        "| step    |  n |", "| ------- | -: |", "| prefill | 10 |"]


def test_a_page_says_what_was_left_out_and_why() -> None:
    text = page({"model": "small"}, [POINT], {64: "it is too large"})
    assert text.startswith("| parameter | value |")
    assert text.endswith("\n\nBatch size 64 was left out: it is too large.")


def test_a_point_becomes_json() -> None:
    one = json.loads(json.dumps(told(POINT)))
    assert (one["batch_size"], one["prefill"]["p90"], one["decode_forward"]["count"]) == (4, 0.04, 4)
