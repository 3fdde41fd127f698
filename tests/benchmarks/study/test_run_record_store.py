import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.study.plan import StudyRun
from benchmarks.study.run_record_store import RunRecords, RunRecordStore, record_from_json, record_to_json

STUDY_RUN = StudyRun("sweep", "simulated", "poisson", "static-1", seed=3, level=0.5)
RUN_METADATA = {"hardware": "a machine", "date": "2025-01-31"}
STREAMED_RECORD = RequestRecord(PlannedRequest(7, "Request 7", 3, at=1.5), 1.5, 2.0, array("d", [1.6, 1.7, 2.0]),
                                num_tokens=3)
FAILED_RECORD = RequestRecord(PlannedRequest(8, "Request 8", 3), 1.5, 1.6, error="503: too many")
UNSTREAMED_RECORD = RequestRecord(PlannedRequest(9, "Request 9", 3, at=0.5), 0.6, 2.0, num_tokens=3, told_seconds=1.25)
RUN_RECORDS = RunRecords(STUDY_RUN, {"requests": 2, "windows": (1.0,)}, RUN_METADATA, [STREAMED_RECORD, FAILED_RECORD],
                         {"throughput": 6.8})
TOKEN_TIME_LISTS = st.lists(st.floats(0, 1e4), min_size=1, max_size=30)


def test_written_records_are_read_back(tmp_path: Path) -> None:
    raw = RunRecordStore(tmp_path)
    assert raw.read(STUDY_RUN, RUN_RECORDS.settings, "a machine") is None
    saved = raw.write(RUN_RECORDS)
    assert raw.get_path(STUDY_RUN).name == "simulated-poisson-static-1-at0.5-seed3.jsonl"
    assert raw.read(STUDY_RUN, RUN_RECORDS.settings, "a machine") == saved
    assert raw.read_all() == [saved]
    assert (saved.run, saved.server_stats, [record.error for record in saved.records]) == (
        STUDY_RUN, {"throughput": 6.8}, ["", "503: too many"])


@given(TOKEN_TIME_LISTS)
def test_times_are_kept_to_a_tenth_of_a_millisecond(times: list[float]) -> None:
    """Rounding errors do not add up, since times are rounded before differences are taken."""
    record = RequestRecord(PlannedRequest(0, "", 3), 0.0, max(times), array("d", sorted(times)), num_tokens=3)
    read = record_from_json(json.loads(json.dumps(record_to_json(record))), is_open_loop=True)
    assert list(read.times) == pytest.approx(list(record.times), abs=1e-4)


def test_server_seconds_and_due_times_are_kept() -> None:
    read = record_from_json(record_to_json(UNSTREAMED_RECORD), is_open_loop=True)
    assert (read.told_seconds, read.due_at, read.sent, read.latency) == (1.25, 0.5, 0.6, 1.5)


def test_closed_loop_records_have_no_due_time() -> None:
    assert record_from_json({**record_to_json(UNSTREAMED_RECORD), "at": 0.0},
                            is_open_loop=False).latency == pytest.approx(1.4)


def test_compat_records_without_server_seconds_must_be_remeasured(tmp_path: Path) -> None:
    run = replace(STUDY_RUN, part="compat", policy="dynamic")
    assert RunRecordStore(tmp_path).write(
        replace(RUN_RECORDS, run=run, records=[UNSTREAMED_RECORD, FAILED_RECORD])).records[0].told_seconds == 1.25
    with pytest.raises(ValueError, match=r"compat/simulated.*was made by an older version.*measure it anew"):
        RunRecordStore(tmp_path).write(replace(RUN_RECORDS, run=run,
                                               records=[replace(UNSTREAMED_RECORD, told_seconds=None)]))


def test_unfinished_file_is_ignored(tmp_path: Path) -> None:
    path = RunRecordStore(tmp_path).get_path(STUDY_RUN)
    path.parent.mkdir(parents=True)
    path.with_suffix(".unfinished").write_text("{")
    assert RunRecordStore(tmp_path).read(STUDY_RUN, {}, "a machine") is None
    assert RunRecordStore(tmp_path).read_all() == []


def test_records_of_other_settings_or_machines_are_rejected(tmp_path: Path) -> None:
    raw = RunRecordStore(tmp_path)
    raw.write(RUN_RECORDS)
    for settings, machine in (({"requests": 3}, "a machine"), (RUN_RECORDS.settings, "another")):
        with pytest.raises(ValueError, match="choose another --folder"):
            raw.read(STUDY_RUN, settings, machine)
    assert raw.read(replace(STUDY_RUN, seed=4), {}, "a machine") is None
