import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.record import Ask, Record
from benchmarks.study.plan import Run
from benchmarks.study.records import Raw, Taken, line, record_of

RUN = Run("sweep", "simulated", "poisson", "static-1", seed=3, level=0.5)
MADE = {"hardware": "a machine", "date": "2025-01-31"}
STREAMED = Record(Ask(7, "Request 7", 3, at=1.5), 1.5, 2.0, array("d", [1.6, 1.7, 2.0]), num_tokens=3)
FAILED = Record(Ask(8, "Request 8", 3), 1.5, 1.6, error="503: too many")
WHOLE = Record(Ask(9, "Request 9", 3, at=0.5), 0.6, 2.0, num_tokens=3, told_seconds=1.25)
TAKEN = Taken(RUN, {"requests": 2, "windows": (1.0,)}, MADE, [STREAMED, FAILED], {"throughput": 6.8})
MOMENTS = st.lists(st.floats(0, 1e4), min_size=1, max_size=30)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    raw = Raw(tmp_path)
    assert raw.read(RUN, TAKEN.settings, "a machine") is None
    written = raw.write(TAKEN)
    assert raw.path(RUN).name == "simulated-poisson-static-1-at0.5-seed3.jsonl"
    assert raw.read(RUN, TAKEN.settings, "a machine") == written
    assert raw.all() == [written]
    assert (written.run, written.stats, [record.error for record in written.records]) == (
        RUN, {"throughput": 6.8}, ["", "503: too many"])


@given(MOMENTS)
def test_times_survive_to_a_tenth_of_a_millisecond(moments: list[float]) -> None:
    """Rounding errors do not add up, since times are rounded before differences are taken."""
    record = Record(Ask(0, "", 3), 0.0, max(moments), array("d", sorted(moments)), num_tokens=3)
    read = record_of(json.loads(json.dumps(line(record))), is_open=True)
    assert list(read.times) == pytest.approx(list(record.times), abs=1e-4)


def test_what_the_server_told_is_kept_and_so_is_when_a_request_was_due() -> None:
    read = record_of(line(WHOLE), is_open=True)
    assert (read.told_seconds, read.due, read.sent, read.latency) == (1.25, 0.5, 0.6, 1.5)


def test_in_a_closed_loop_nothing_was_due_whatever_an_older_file_says() -> None:
    assert record_of({**line(WHOLE), "at": 0.0}, is_open=False).latency == pytest.approx(1.4)


def test_records_of_the_studys_mode_without_the_servers_seconds_must_be_made_anew(tmp_path: Path) -> None:
    run = replace(RUN, part="compat", policy="dynamic")
    assert Raw(tmp_path).write(replace(TAKEN, run=run, records=[WHOLE, FAILED])).records[0].told_seconds == 1.25
    with pytest.raises(ValueError, match=r"compat/simulated.*was made by an older version.*measure it anew"):
        Raw(tmp_path).write(replace(TAKEN, run=run, records=[replace(WHOLE, told_seconds=None)]))


def test_a_file_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    path = Raw(tmp_path).path(RUN)
    path.parent.mkdir(parents=True)
    path.with_suffix(".unfinished").write_text("{")
    assert Raw(tmp_path).read(RUN, {}, "a machine") is None
    assert Raw(tmp_path).all() == []


def test_records_of_other_settings_or_machines_are_refused(tmp_path: Path) -> None:
    raw = Raw(tmp_path)
    raw.write(TAKEN)
    for settings, machine in (({"requests": 3}, "a machine"), (TAKEN.settings, "another")):
        with pytest.raises(ValueError, match="choose another --folder"):
            raw.read(RUN, settings, machine)
    assert raw.read(replace(RUN, seed=4), {}, "a machine") is None
