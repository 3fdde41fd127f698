"""Recording as a file: JSON lines, the first of which holds the settings, the model's facts and the version of weft.

Each segment begins with a line that holds the time (`at`) and the whole scheduler (`core`). A line for every call
follows: `at` (its time), `call` (the method), `given` (the arguments), `outcome` (the decision, see `decision.py`) and
`names` (the block hashes computed during the call). Empty values are left out, and a line with only a time is a call of
`plan` that returned None.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from router.config import RouterConfig
from router.recording.core_json import to_json
from router.recording.recorder import Note, Segment
from router.recording.redact import told
from router.recording.snapshot import restore
from router.scheduler.plan import Measurement, ModelFacts

FORMAT = 1


class BadRecording(ValueError):
    """The file is no recording, or this version of weft cannot read it."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """First line of a segment."""

    at: float
    core: list[Any]


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    at: float
    given: tuple[Any, ...] = ()
    outcome: tuple[Any, ...] = ()
    names: tuple[bytes, ...] = ()


# -- writing


def header(config: RouterConfig, facts: ModelFacts, why: str) -> dict[str, Any]:
    return {"weft_recording": FORMAT, "weft": version("weft"), "written": datetime.now(UTC).isoformat(), "why": why,
            "settings": harmless(config), "facts": asdict(facts)}


def harmless(config: RouterConfig) -> dict[str, Any]:
    """Return the settings that are numbers, switches or choices.

    Free text is left out: it may be a secret, and no decision depends on it.
    """
    values = {item.name: (getattr(config, item.name), item.metadata["choices"]) for item in fields(config)}
    return {name: value for name, (value, choices) in values.items()
            if choices or value is None or isinstance(value, bool | int | float)}


def write(lines: TextIO, first: dict[str, Any], segments: Iterable[Segment]) -> None:
    lines.write(json.dumps(first) + "\n")
    for segment in segments:
        lines.write(json.dumps({"at": segment.began, "core": to_json(restore(segment.snapshot))}) + "\n")
        lines.writelines(f"{json.dumps(line)}\n" for line in map(line_of, segment.notes))


def line_of(note: Note) -> dict[str, Any]:
    if isinstance(note, float):
        return {"at": note}
    call, now, given, outcome, names = note
    if call == "submit":
        given = (told(given[0]),)
    elif call == "shards_ready":
        given = (asdict(given[0]), given[1])
    line = {"at": now, "call": call, "given": given, "outcome": outcome, "names": [name.hex() for name in names]}
    return {key: value for key, value in line.items() if value or key == "at"}


# -- reading


class Recording:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_cut = False  # whether the last line is incomplete; known when all lines have been read
        with self._open() as lines:
            first = self._parsed(1, lines.readline())
        if "weft_recording" not in first:
            raise BadRecording(f"{path} is no recording: its first line does not say so")
        if first["weft_recording"] != FORMAT:
            raise BadRecording(f"{path} has format {first['weft_recording']}, this weft reads {FORMAT}")
        self.weft = str(first.get("weft"))
        self._first = first

    @property
    def config(self) -> RouterConfig:
        known = {item.name for item in fields(RouterConfig)}
        return RouterConfig(**{name: value for name, value in self._first["settings"].items() if name in known})

    @property
    def facts(self) -> ModelFacts:
        return facts_of(self._first["facts"])

    def __iter__(self) -> Iterator[Beginning | Call]:
        with self._open() as lines:
            lines.readline()
            for number, line in enumerate(lines, 2):
                if not line.endswith("\n"):
                    self.is_cut = True
                    return
                parsed = self._parsed(number, line)
                try:
                    yield item_of(parsed)
                except (AttributeError, KeyError, TypeError, ValueError):
                    raise BadRecording(f"{self.path}: line {number} is no event of a recording") from None

    def _open(self) -> TextIO:
        try:
            return self.path.open(encoding="utf-8", errors="replace")
        except OSError as error:
            raise BadRecording(f"cannot read {self.path}: {error.strerror}") from None

    def _parsed(self, number: int, line: str) -> dict[str, Any]:
        if not line.strip():
            raise BadRecording(f"{self.path}: line {number} is empty" if number > 1 else f"{self.path} is empty")
        try:
            parsed = json.loads(line)
        except ValueError:
            raise BadRecording(f"{self.path}: line {number} is not JSON") from None
        if not isinstance(parsed, dict):
            raise BadRecording(f"{self.path}: line {number} is no JSON object")
        return parsed


def item_of(line: dict[str, Any]) -> Beginning | Call:
    at = float(line["at"])
    if "core" in line:
        return Beginning(at, line["core"])
    return Call(line.get("call", "plan"), at, tupled(line.get("given", ())), tupled(line.get("outcome", ())),
                tuple(map(bytes.fromhex, line.get("names", ()))))


def tupled(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(tupled(item) if isinstance(item, list) else item for item in items)


def facts_of(told: dict[str, Any]) -> ModelFacts:
    return ModelFacts(**told | {"measurements": tuple(Measurement(**row) for row in told["measurements"]),
                                "labels": tuple(told.get("labels", ()))})
