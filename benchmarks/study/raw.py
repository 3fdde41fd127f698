"""Records of runs as files, there as a whole or not at all: a study that was interrupted goes on where it was.

The first line tells the run, its settings and where it was made, each other line a request. Times are seconds; those
between tokens are milliseconds, since they are many.
"""

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from benchmarks.bench.record import Ask, Record
from benchmarks.study.plan import COMPAT, Run

PLACES = 4  # digits behind the point of a second


@dataclass(frozen=True, slots=True)
class Taken:
    """What was measured in a run."""

    run: Run
    settings: Mapping[str, Any]
    made: Mapping[str, Any]  # date, hardware and versions
    records: list[Record]
    stats: Mapping[str, Any] = field(default_factory=dict)  # what the server told about it


class Raw:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "raw"

    def path(self, run: Run) -> Path:
        return self._folder / run.part / f"{run.name}.jsonl"

    def write(self, taken: Taken) -> Taken:
        """As it is read later, so that what follows from it is the same then."""
        path = self.path(taken.run)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text("".join(f"{line}\n" for line in lines(taken)))
        unfinished.rename(path)
        return read(path)

    def read(self, run: Run, settings: Mapping[str, Any], machine: str) -> Taken | None:
        """What is there of the same run. Raises ValueError if it is of another."""
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
    """Without the prompt, which its seed makes again."""
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
    """Older files have an `at` of 0 also where nobody knew one."""
    times = array("d")
    if "first" in told:
        times.extend(accumulate((gap / 1e3 for gap in told["gaps_ms"]), initial=told["first"]))
    ask = Ask(told["number"], "", told["asked"], at=told.get("at") if is_open else None)
    return Record(ask, told["sent"], told["ended"], times, told["tokens"], told_seconds=told.get("told_seconds"),
                  error=told.get("error", ""))
