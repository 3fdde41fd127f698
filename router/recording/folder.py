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
from router.model_info import ModelInfo
from router.recording.file import make_header, write_recording
from router.recording.recorder import RecordingSegment

MAX_RECORDINGS = 20
MIN_AUTOMATIC_INTERVAL = 600.0  # least seconds between two automatic recordings

logger = logging.getLogger(__name__)


class RecordingFolder:
    """Folder to which recordings are written in the background; the oldest files are deleted."""

    def __init__(self, folder: Path, config: RouterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._config = config
        self._clock = clock
        self._last_automatic_at: float | None = None  # when the last automatic recording was begun
        self._writer_thread: threading.Thread | None = None

    def write_in_background(self, segments: list[RecordingSegment], model_info: ModelInfo, reason: str) -> None:
        """Begin to write a recording, unless another one is being written."""
        if self._writer_thread is not None and self._writer_thread.is_alive():
            logger.warning("a recording is being written already")
            return
        # Not a daemon thread: the process exits only when the recording has been written.
        self._writer_thread = threading.Thread(target=self._write_file, args=(segments, model_info, reason),
                                               name="recording")
        self._writer_thread.start()

    def write_automatic(self, segments: list[RecordingSegment], model_info: ModelInfo, reason: str) -> None:
        """Write an automatic recording like `write_in_background`, but at most one in `MIN_AUTOMATIC_INTERVAL`
        seconds."""
        now = self._clock()
        if self._last_automatic_at is None or now - self._last_automatic_at >= MIN_AUTOMATIC_INTERVAL:
            self._last_automatic_at = now
            self.write_in_background(segments, model_info, reason)

    def close(self) -> None:
        """Wait until everything is written."""
        if self._writer_thread is not None:
            self._writer_thread.join()

    def _write_file(self, segments: list[RecordingSegment], model_info: ModelInfo, reason: str) -> None:
        name = f"weft-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.jsonl"
        path, partial = self._folder / name, self._folder / f".{name}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.touch(mode=0o600)
            with partial.open("w", encoding="utf-8") as lines:
                write_recording(lines, make_header(self._config, model_info, reason), segments)
            partial.rename(path)
            self._delete_oldest()
        except Exception:
            logger.exception("the recording could not be written to %s", path)
        else:
            count = sum(len(segment.entries) for segment in segments)
            logger.info("%s: the last %d events are in %s", reason, count, path)

    def _delete_oldest(self) -> None:
        for path in sorted(self._folder.glob("weft-*.jsonl"))[:-MAX_RECORDINGS]:
            path.unlink(missing_ok=True)
