"""Result of a run: its figures, its requests, settings and environment; with output as JSON and as CSV."""

import csv
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from math import isfinite
from statistics import fmean
from typing import Any

from benchmarks.bench.load.request_records import RequestRecord
from benchmarks.bench.report.server_comparison import MetricComparison
from benchmarks.bench.report.summary import RunSummary

CSV_COLUMNS = ("run", "number", "adapter", "due", "sent", "first_token", "ended", "latency", "prompt_tokens",
               "output_tokens", "num_tokens", "mean_gap", "status", "error")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Result of one run: summary, records of all requests, settings and environment."""

    name: str
    command: str
    settings: Mapping[str, Any]
    date: str
    hardware: str
    versions: Mapping[str, str]
    summary: RunSummary
    records: Sequence[RequestRecord]
    overhead: Mapping[str, float]  # of the bench itself, by unit, such as "% of a core"
    window: tuple[float, float]
    stats: Mapping[str, Any] = field(default_factory=dict)  # the server's own counters, if the dialect has them
    is_whole: bool = True  # False: the run was interrupted


def to_json(results: Sequence[BenchResult], comparison: Sequence[MetricComparison] = ()) -> str:
    """Return everything as one line of JSON; infinity and NaN, which JSON lacks, are null."""
    report = {"results": [asdict(result) for result in results],
              "comparison": [ratio.to_json_dict() for ratio in comparison]}
    return json.dumps(to_json_value(report), allow_nan=False, default=str)


def to_json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | array):
        return [to_json_value(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def make_unique_run_names(results: Sequence[BenchResult]) -> list[str]:
    """Return the names of the runs, numbered where several have the same."""
    names = [result.name for result in results]
    return [f"{name}{names[:index + 1].count(name)}" if names.count(name) > 1 else name
            for index, name in enumerate(names)]


def to_csv(results: Sequence[BenchResult]) -> str:
    """Return a CSV line for each request, in seconds and tokens; unknown values are empty."""
    lines = csv.writer(page := StringIO(), lineterminator="\n")
    lines.writerow(CSV_COLUMNS)
    lines.writerows(make_csv_row(name, record) for name, result in zip(make_unique_run_names(results), results,
       strict=True) for record in result.records)
    return page.getvalue()


def make_csv_row(run: str, record: RequestRecord) -> tuple[Any, ...]:
    request, token_gaps = record.ask, record.inter_token_times
    prompt_tokens = request.prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    return (run, request.number, request.adapter, record.due_at, record.sent, record.time_to_first_token, record.ended,
            record.latency, prompt_tokens, request.output_tokens, record.num_tokens,
            fmean(token_gaps) if token_gaps else None, record.status, record.error)
