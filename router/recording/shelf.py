"""Folder of recordings: files named by time, of which the oldest are deleted.

Each file is written in a thread of its own, which takes a second or two. An error while writing is only logged.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from router.config import RouterConfig
from router.recording.file import header, write
from router.recording.recorder import Segment
from router.scheduler.plan import ModelFacts

KEPT = 20
RARELY = 600.0  # least seconds between two automatic recordings

log = logging.getLogger(__name__)


class Shelf:
    def __init__(self, folder: Path, config: RouterConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._config = config
        self._now = now
        self._unasked: float | None = None  # when the last automatic recording was begun
        self._writer: threading.Thread | None = None

    def put(self, segments: list[Segment], facts: ModelFacts, why: str) -> None:
        """Begin to write a recording, unless another one is being written."""
        if self._writer is not None and self._writer.is_alive():
            log.warning("a recording is being written already")
            return
        # Not a daemon thread: the process exits only when the recording has been written.
        self._writer = threading.Thread(target=self._write, args=(segments, facts, why), name="recording")
        self._writer.start()

    def put_unasked(self, segments: list[Segment], facts: ModelFacts, why: str) -> None:
        """Write an automatic recording like `put`, but at most one in `RARELY` seconds."""
        now = self._now()
        if self._unasked is None or now - self._unasked >= RARELY:
            self._unasked = now
            self.put(segments, facts, why)

    def close(self) -> None:
        """Wait until everything is written."""
        if self._writer is not None:
            self._writer.join()

    def _write(self, segments: list[Segment], facts: ModelFacts, why: str) -> None:
        name = f"weft-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.jsonl"
        path, partial = self._folder / name, self._folder / f".{name}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.touch(mode=0o600)
            with partial.open("w", encoding="utf-8") as lines:
                write(lines, header(self._config, facts, why), segments)
            partial.rename(path)
            self._forget_oldest()
        except Exception:
            log.exception("the recording could not be written to %s", path)
        else:
            count = sum(len(segment.notes) for segment in segments)
            log.info("%s: the last %d events are in %s", why, count, path)

    def _forget_oldest(self) -> None:
        for path in sorted(self._folder.glob("weft-*.jsonl"))[:-KEPT]:
            path.unlink(missing_ok=True)
