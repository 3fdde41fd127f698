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

from benchmarks.bench.load.record import Ask, Record
from benchmarks.study.plan import COMPAT, Run

PLACES = 4  # decimals of seconds


@dataclass(frozen=True, slots=True)
class Taken:
    """Records of a run, with its settings and environment."""

    run: Run
    settings: Mapping[str, Any]
    made: Mapping[str, Any]  # date, hardware and versions
    records: list[Record]
    stats: Mapping[str, Any] = field(default_factory=dict)  # the server's own counters


class Raw:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "raw"

    def path(self, run: Run) -> Path:
        return self._folder / run.part / f"{run.name}.jsonl"

    def write(self, taken: Taken) -> Taken:
        """Write a run and return it as read back: rounded, so that figures are the same when it is read later."""
        path = self.path(taken.run)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text("".join(f"{line}\n" for line in lines(taken)))
        unfinished.rename(path)
        return read(path)

    def read(self, run: Run, settings: Mapping[str, Any], machine: str) -> Taken | None:
        """Return the stored run, or None. Raises ValueError if it has other settings or is of another machine."""
        path = self.path(run)
        if not path.exists():
            return None
        taken = read(path)
        if taken.settings != json.loads(json.dumps(settings)) or taken.made["hardware"] != machine:
            raise ValueError(f"{path} was made with other settings or on another machine; choose another --folder, or "
                             "remove it")
        return taken

    def all(self) -> list[Taken]:
        return [read(path) for path in sorted(self._folder.rglob("*.jsonl"))]


def lines(taken: Taken) -> Iterator[str]:
    yield json.dumps({"run": asdict(taken.run), "settings": taken.settings, "made": taken.made, "stats": taken.stats})
    for record in taken.records:
        yield json.dumps(line(record))


def line(record: Record) -> dict[str, Any]:
    """Return a record for JSON, without the prompt, which its seed reproduces."""
    ask = record.ask
    told: dict[str, Any] = {
        "number": ask.number, "asked": ask.output_tokens, "sent": round(record.sent, PLACES),
        "ended": round(record.ended, PLACES), "tokens": record.num_tokens}
    if ask.at is not None:
        told["at"] = round(ask.at, PLACES)
    if record.told_seconds is not None:
        told["told_seconds"] = round(record.told_seconds, PLACES)
    if record.times:
        whole = [round(at, PLACES) for at in record.times]
        told |= {"first": whole[0], "gaps_ms": [round(1e3 * (after - before), 1) for before, after in pairwise(whole)]}
    return told | ({"error": record.error} if record.error else {})


def read(path: Path) -> Taken:
    head, *rest = map(json.loads, path.read_text().splitlines())
    run = Run(**head["run"])
    records = [record_of(told, is_open=run.concurrency is None) for told in rest]
    if run.part == COMPAT and any(record.told_seconds is None for record in records if not record.error):
        raise ValueError(f"{path} was made by an older version, to which the server did not tell how long its answers "
                         "took: remove it, and measure it anew")
    return Taken(run, head["settings"], head["made"], records, head["stats"])


def record_of(told: Mapping[str, Any], *, is_open: bool) -> Record:
    """Parse a record. `at` is ignored in a closed loop, where older files have 0."""
    times = array("d")
    if "first" in told:
        times.extend(accumulate((gap / 1e3 for gap in told["gaps_ms"]), initial=told["first"]))
    ask = Ask(told["number"], "", told["asked"], at=told.get("at") if is_open else None)
    return Record(ask, told["sent"], told["ended"], times, told["tokens"], told_seconds=told.get("told_seconds"),
                  error=told.get("error", ""))
