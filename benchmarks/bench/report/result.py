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

from benchmarks.bench.load.record import Record
from benchmarks.bench.report.summary import Summary
from benchmarks.bench.report.versus import Ratio

COLUMNS = ("run", "number", "adapter", "due", "sent", "first_token", "ended", "latency", "prompt_tokens",
           "output_tokens", "num_tokens", "mean_gap", "status", "error")


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    command: str
    settings: Mapping[str, Any]
    date: str
    hardware: str
    versions: Mapping[str, str]
    summary: Summary
    records: Sequence[Record]
    overhead: Mapping[str, float]  # of the bench itself, by unit, such as "% of a core"
    window: tuple[float, float]
    stats: Mapping[str, Any] = field(default_factory=dict)  # the server's own counters, if the dialect has them
    is_whole: bool = True  # False: the run was interrupted


def to_json(results: Sequence[Result], comparison: Sequence[Ratio] = ()) -> str:
    """Return everything as one line of JSON; infinity and NaN, which JSON lacks, are null."""
    whole = {"results": [asdict(result) for result in results], "comparison": [ratio.figures() for ratio in comparison]}
    return json.dumps(plain(whole), allow_nan=False, default=str)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | array):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def names_of(results: Sequence[Result]) -> list[str]:
    """Return the names of the runs, numbered where several have the same."""
    names = [result.name for result in results]
    return [f"{name}{names[:place + 1].count(name)}" if names.count(name) > 1 else name
            for place, name in enumerate(names)]


def to_csv(results: Sequence[Result]) -> str:
    """Return a CSV line for each request, in seconds and tokens; unknown values are empty."""
    lines = csv.writer(page := StringIO(), lineterminator="\n")
    lines.writerow(COLUMNS)
    lines.writerows(cells(name, record) for name, result in zip(names_of(results), results, strict=True)
                    for record in result.records)
    return page.getvalue()


def cells(run: str, record: Record) -> tuple[Any, ...]:
    ask, gaps = record.ask, record.gaps
    prompt_tokens = ask.prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    return (run, ask.number, ask.adapter, record.due, record.sent, record.first_token, record.ended, record.latency,
            prompt_tokens, ask.output_tokens, record.num_tokens, fmean(gaps) if gaps else None, record.status,
            record.error)
