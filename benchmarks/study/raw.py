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
from benchmarks.study.plan import Run

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
        "number": ask.number, "asked": ask.output_tokens, "at": round(ask.at, PLACES),
        "sent": round(record.sent, PLACES), "ended": round(record.ended, PLACES), "tokens": record.num_tokens}
    if record.times:
        whole = [round(at, PLACES) for at in record.times]
        told |= {"first": whole[0], "gaps_ms": [round(1e3 * (after - before), 1) for before, after in pairwise(whole)]}
    return told | ({"error": record.error} if record.error else {})


def read(path: Path) -> Taken:
    head, *rest = map(json.loads, path.read_text().splitlines())
    return Taken(Run(**head["run"]), head["settings"], head["made"], list(map(record_of, rest)), head["stats"])


def record_of(told: Mapping[str, Any]) -> Record:
    times = array("d")
    if "first" in told:
        times.extend(accumulate((gap / 1e3 for gap in told["gaps_ms"]), initial=told["first"]))
    return Record(Ask(told["number"], "", told["asked"], at=told["at"]), told["sent"], told["ended"], times,
                  told["tokens"], error=told.get("error", ""))
