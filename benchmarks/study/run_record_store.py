"""Records of runs as files, which are written atomically: an interrupted study can be resumed.

The first line holds the run, its settings, date, hardware and versions, each further line a request. Times are seconds;
those between tokens are milliseconds, to keep the files small.
"""

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.study.plan import COMPAT_PART, StudyRun

NUM_DECIMALS = 4  # decimals of seconds


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Records of a run, with its settings and environment."""

    run: StudyRun
    settings: Mapping[str, Any]
    metadata: Mapping[str, Any]  # date, hardware and versions
    records: list[RequestRecord]
    server_stats: Mapping[str, Any] = field(default_factory=dict)  # the server's own counters


class RunRecordStore:
    """Files with the records of runs, in a folder of the study."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "raw"

    def get_path(self, run: StudyRun) -> Path:
        return self._folder / run.part / f"{run.name}.jsonl"

    def write(self, run_records: RunRecords) -> RunRecords:
        """Write a run and return it as read back: rounded, so that figures are the same when it is read later."""
        path = self.get_path(run_records.run)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished_path = path.with_suffix(".unfinished")
        unfinished_path.write_text("".join(f"{line}\n" for line in iter_record_lines(run_records)))
        unfinished_path.rename(path)
        return load_run_records(path)

    def read(self, run: StudyRun, settings: Mapping[str, Any], hardware: str) -> RunRecords | None:
        """Return the stored run, or None. Raises ValueError if it has other settings or is of another machine."""
        path = self.get_path(run)
        if not path.exists():
            return None
        run_records = load_run_records(path)
        if run_records.settings != json.loads(json.dumps(settings)) or run_records.metadata["hardware"] != hardware:
            raise ValueError(f"{path} was made with other settings or on another machine; choose another --folder, or "
                             "remove it")
        return run_records

    def read_all(self) -> list[RunRecords]:
        return [load_run_records(path) for path in sorted(self._folder.rglob("*.jsonl"))]


def iter_record_lines(run_records: RunRecords) -> Iterator[str]:
    yield json.dumps({"run": asdict(run_records.run), "settings": run_records.settings, "made": run_records.metadata,
                      "stats": run_records.server_stats})
    for record in run_records.records:
        yield json.dumps(record_to_json(record))


def record_to_json(record: RequestRecord) -> dict[str, Any]:
    """Return a record for JSON, without the prompt, which its seed reproduces."""
    request = record.ask
    record_json: dict[str, Any] = {
        "number": request.number, "asked": request.output_tokens, "sent": round(record.sent, NUM_DECIMALS),
        "ended": round(record.ended, NUM_DECIMALS), "tokens": record.num_tokens}
    if request.at is not None:
        record_json["at"] = round(request.at, NUM_DECIMALS)
    if record.told_seconds is not None:
        record_json["told_seconds"] = round(record.told_seconds, NUM_DECIMALS)
    if record.times:
        token_times = [round(at, NUM_DECIMALS) for at in record.times]
        record_json |= {"first": token_times[0],
                        "gaps_ms": [round(1e3 * (after - before), 1) for before, after in pairwise(token_times)]}
    return record_json | ({"error": record.error} if record.error else {})


def load_run_records(path: Path) -> RunRecords:
    run_json, *record_jsons = map(json.loads, path.read_text().splitlines())
    run = StudyRun(**run_json["run"])
    records = [record_from_json(record_json, is_open_loop=run.concurrency is None) for record_json in record_jsons]
    if run.part == COMPAT_PART and any(record.told_seconds is None for record in records if not record.error):
        raise ValueError(f"{path} was made by an older version, to which the server did not tell how long its answers "
                         "took: remove it, and measure it anew")
    return RunRecords(run, run_json["settings"], run_json["made"], records, run_json["stats"])


def record_from_json(record_json: Mapping[str, Any], *, is_open_loop: bool) -> RequestRecord:
    """Parse a record. `at` is ignored in a closed loop, where older files have 0."""
    token_times = array("d")
    if "first" in record_json:
        token_times.extend(accumulate((gap / 1e3 for gap in record_json["gaps_ms"]), initial=record_json["first"]))
    request = PlannedRequest(record_json["number"], "", record_json["asked"],
                             at=record_json.get("at") if is_open_loop else None)
    return RequestRecord(request, record_json["sent"], record_json["ended"], token_times, record_json["tokens"],
                         told_seconds=record_json.get("told_seconds"), error=record_json.get("error", ""))
