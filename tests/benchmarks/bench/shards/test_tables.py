import json

import pytest

from benchmarks.bench.shards.batch_run import BatchRunTimings, StepTiming
from benchmarks.bench.shards.tables import (
    format_latencies,
    format_markdown_table,
    format_page,
    format_throughputs,
    format_wire_times,
    summarize_batch_size,
    to_json_dict,
)

BATCH_RUNS = [BatchRunTimings(StepTiming(0.020, 0.015, 4), (StepTiming(0.010, 0.008, 4), StepTiming(0.012, 0.009, 4))),
              BatchRunTimings(StepTiming(0.040, 0.035, 4), (StepTiming(0.014, 0.010, 4), StepTiming(0.016, 0.011, 4)))]
BATCH_STATS = summarize_batch_size(4, BATCH_RUNS)


def parse_table_cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_decode_stats_are_per_step_and_per_run() -> None:
    assert (BATCH_STATS.decode.count, BATCH_STATS.decode.mean,
            BATCH_STATS.decode.most) == (4, pytest.approx(0.013), 0.016)
    assert (BATCH_STATS.decode_total.count, BATCH_STATS.decode_total.least) == (2, pytest.approx(0.022))


def test_throughput_counts_received_tokens() -> None:
    assert (BATCH_STATS.prefill_tokens_per_second.most, BATCH_STATS.prefill_tokens_per_second.least) == (200.0, 100.0)
    assert BATCH_STATS.decode_tokens_per_second.most == pytest.approx(8 / 0.022)


def test_latencies_are_in_milliseconds() -> None:
    rows = parse_table_cells(format_latencies([BATCH_STATS]))
    assert rows[0] == ["step", "batch size", "average", "lowest", "highest", "p50", "p90", "p99"]
    assert rows[2] == ["prefill", "4", "30.00", "20.00", "40.00", "20.00", "40.00", "40.00"]
    assert [row[0] for row in rows[2:]] == ["prefill", "decode (token)", "decode (total)"]


def test_throughputs_are_in_tokens_per_second() -> None:
    rows = parse_table_cells(format_throughputs([BATCH_STATS]))
    assert rows[2] == ["prefill", "4", "150.00", "100.00", "200.00"]
    assert rows[3][:2] == ["decode", "4"]


def test_overhead_is_step_time_minus_forward_time() -> None:
    assert parse_table_cells(format_wire_times([BATCH_STATS]))[2:] == [
        ["prefill", "4", "30.000", "25.000", "5.000"], ["decode (token)", "4", "13.000", "9.500", "3.500"]]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert format_markdown_table(["step", "n"], [["prefill", "10"]]).splitlines() == [
        "| step    |  n |", "| ------- | -: |", "| prefill | 10 |"]


def test_page_lists_omitted_batch_sizes_with_reasons() -> None:
    text = format_page({"model": "small"}, [BATCH_STATS], {64: "it is too large"})
    assert text.startswith("| parameter | value |")
    assert text.endswith("\n\nBatch size 64 was left out: it is too large.")


def test_stats_are_encoded_as_json() -> None:
    one = json.loads(json.dumps(to_json_dict(BATCH_STATS)))
    assert (one["batch_size"], one["prefill"]["p90"], one["decode_forward"]["count"]) == (4, 0.04, 4)
