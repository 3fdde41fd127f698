"""Recordings as files: JSON lines, the first of which holds the settings, the model's facts and the version of weft.

Each segment begins with a line that holds the time (`at`) and the whole scheduler (`core`). A line for every call
follows: `at` (its time), `call` (the method), `given` (the arguments), `outcome` (the decision, as
`recording_scheduler.py` summarizes it) and `names` (the block hashes computed during the call). Empty values are left
out, and a line with only a time is a call of `plan` that returned None.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from router.config import RouterConfig
from router.model_info import ModelInfo, StepMeasurement
from router.recording.recording_scheduler import CallEntry, SnapshotWithCalls
from router.recording.scheduler_snapshot import StateTable, redacted_request_to_json, table_to_json

FORMAT_VERSION = 5
MAX_RECORDINGS = 20  # in a folder
MIN_AUTOMATIC_INTERVAL = 600.0  # least seconds between two automatic recordings

logger = logging.getLogger(__name__)


class BadRecording(ValueError):
    """The file is no recording, or this version of weft cannot read it."""


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """First line of a segment."""

    recorded_at: float
    scheduler_table: StateTable


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One recorded call of a scheduler method: its time, arguments, outcome, and the block hashes computed in it."""

    method: str
    recorded_at: float
    arguments: tuple[Any, ...] = ()
    outcome: tuple[Any, ...] = ()
    block_hashes: tuple[bytes, ...] = ()


# -- writing


def make_header(config: RouterConfig, model_info: ModelInfo, reason: str) -> dict[str, Any]:
    return {"weft_recording": FORMAT_VERSION, "weft": version("weft"), "written": datetime.now(UTC).isoformat(),
            "why": reason, "settings": non_secret_settings(config), "facts": asdict(model_info)}


def non_secret_settings(config: RouterConfig) -> dict[str, Any]:
    """Return all settings but those of free text, which may be secret and on which no decision depends."""
    values = {item.name: (getattr(config, item.name), item.metadata["choices"]) for item in fields(config)}
    return {name: value for name, (value, choices) in values.items()
            if choices or value is None or isinstance(value, bool | int | float)}


def write_recording(file: TextIO, header: dict[str, Any], segments: Iterable[SnapshotWithCalls]) -> None:
    file.write(json.dumps(header) + "\n")
    for segment in segments:
        file.write(f'{{"at": {json.dumps(segment.started_at)}, "core": {table_to_json(segment.snapshot)}}}\n')
        file.writelines(f"{json.dumps(line)}\n" for line in map(call_to_json, segment.entries))


def call_to_json(entry: CallEntry) -> dict[str, Any]:
    if isinstance(entry, float):
        return {"at": entry}
    method, now, arguments, outcome, block_hashes = entry
    if method == "submit":
        arguments = (redacted_request_to_json(arguments[0]),)
    elif method == "on_shards_ready":
        arguments = (asdict(arguments[0]), arguments[1])
    line = {"at": now, "call": method, "given": arguments, "outcome": outcome,
            "names": [name.hex() for name in block_hashes]}
    return {key: value for key, value in line.items() if value or key == "at"}


class RecordingFolder:
    """Folder to which recordings are written, files named by time, of which the oldest are deleted. Each file is
    written in a thread of its own, which takes a second or two. An error while writing is only logged."""

    def __init__(self, folder: Path, config: RouterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._config = config
        self._clock = clock
        self._last_automatic_at: float | None = None  # when the last automatic recording was begun
        self._writer_thread: threading.Thread | None = None

    def write_in_background(self, segments: list[SnapshotWithCalls], model_info: ModelInfo, reason: str, *,
                            is_automatic: bool = False) -> None:
        """Begin to write a recording, unless another one is being written. An automatic one is written at most once in
        MIN_AUTOMATIC_INTERVAL seconds."""
        if is_automatic:
            now = self._clock()
            if self._last_automatic_at is not None and now - self._last_automatic_at < MIN_AUTOMATIC_INTERVAL:
                return
            self._last_automatic_at = now
        if self._writer_thread is not None and self._writer_thread.is_alive():
            logger.warning("a recording is being written already")
            return
        # Not a daemon thread: the process exits only when the recording has been written.
        self._writer_thread = threading.Thread(target=self._write_file, args=(segments, model_info, reason),
                                               name="recording")
        self._writer_thread.start()

    def close(self) -> None:
        """Wait until everything is written."""
        if self._writer_thread is not None:
            self._writer_thread.join()

    def _write_file(self, segments: list[SnapshotWithCalls], model_info: ModelInfo, reason: str) -> None:
        name = f"weft-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.jsonl"
        path, partial = self._folder / name, self._folder / f".{name}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.touch(mode=0o600)
            with partial.open("w", encoding="utf-8") as lines:
                write_recording(lines, make_header(self._config, model_info, reason), segments)
            partial.rename(path)
            for oldest in sorted(self._folder.glob("weft-*.jsonl"))[:-MAX_RECORDINGS]:
                oldest.unlink(missing_ok=True)
        except Exception:
            logger.exception("the recording could not be written to %s", path)
        else:
            count = sum(len(segment.entries) for segment in segments)
            logger.info("%s: the last %d events are in %s", reason, count, path)


# -- reading


class Recording:
    """A recording file. Iterating yields each segment's start and its calls, or raises BadRecording for a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_truncated = False  # whether the last line is incomplete; known when all lines have been read
        with self._open_for_reading() as lines:
            header = self._parse_line(1, lines.readline())
        if "weft_recording" not in header:
            raise BadRecording(f"{path} is no recording: its first line does not say so")
        if header["weft_recording"] != FORMAT_VERSION:
            raise BadRecording(f"{path} has format {header['weft_recording']}, this weft reads {FORMAT_VERSION}")
        self.weft_version = str(header.get("weft"))
        self._header = header

    @property
    def config(self) -> RouterConfig:
        known = {item.name for item in fields(RouterConfig)}
        return RouterConfig(**{name: value for name, value in self._header["settings"].items() if name in known})

    @property
    def model_info(self) -> ModelInfo:
        return model_info_from_json(self._header["facts"])

    def __iter__(self) -> Iterator[SegmentStart | RecordedCall]:
        with self._open_for_reading() as lines:
            lines.readline()
            for line_number, line in enumerate(lines, 2):
                if not line.endswith("\n"):
                    self.is_truncated = True
                    return
                parsed = self._parse_line(line_number, line)
                try:
                    at = float(parsed["at"])
                    if "core" in parsed:
                        yield SegmentStart(at, parsed["core"])
                    else:
                        yield RecordedCall(parsed.get("call", "plan"), at, lists_to_tuples(parsed.get("given", ())),
                                           lists_to_tuples(parsed.get("outcome", ())),
                                           tuple(map(bytes.fromhex, parsed.get("names", ()))))
                except (AttributeError, KeyError, TypeError, ValueError):
                    raise BadRecording(f"{self.path}: line {line_number} is no event of a recording") from None

    def _open_for_reading(self) -> TextIO:
        try:
            return self.path.open(encoding="utf-8", errors="replace")
        except OSError as error:
            raise BadRecording(f"cannot read {self.path}: {error.strerror}") from None

    def _parse_line(self, line_number: int, line: str) -> dict[str, Any]:
        if not line.strip():
            raise BadRecording(f"{self.path}: line {line_number} is empty" if line_number > 1
                               else f"{self.path} is empty")
        try:
            parsed = json.loads(line)
        except ValueError:
            raise BadRecording(f"{self.path}: line {line_number} is not JSON") from None
        if not isinstance(parsed, dict):
            raise BadRecording(f"{self.path}: line {line_number} is no JSON object")
        return parsed


def lists_to_tuples(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(lists_to_tuples(item) if isinstance(item, list) else item for item in items)


def model_info_from_json(values: dict[str, Any]) -> ModelInfo:
    return ModelInfo(**values | {"measurements": tuple(StepMeasurement(**row) for row in values["measurements"]),
                                 "labels": tuple(values.get("labels", ()))})
