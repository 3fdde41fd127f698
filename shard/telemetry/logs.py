"""Logging of all processes of a server: lines of text for people, or a JSON object on each line for programs.

Router and launcher use this module, too.
"""

import json
import logging
import select
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

LOG_LEVELS = ("debug", "info", "warning", "error")
# Programs that read the logs of text-generation-inference know only its four names of levels.
LIBRARIES_WITHOUT_DEBUG = ("asyncio", "grpc")  # whose messages of this level are about their own inside
TGI_LEVEL_NAMES = {logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Level and form of log lines."""

    level: str = "info"
    as_json: bool = False


class JsonLogFormatter(logging.Formatter):
    """Formatter of JSON lines; `target` is the module that logs, `process_name` a name such as `shard 0`."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        timestamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        entry = {"timestamp": timestamp.replace("+00:00", "Z"),
                 "level": TGI_LEVEL_NAMES.get(record.levelno, record.levelname),
                 "message": record.getMessage().rstrip("\n"), "target": record.name, "process": self._process_name}
        entry |= getattr(record, "fields", {})  # given as `extra`, for programs that do not read messages
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class DroppingStreamHandler(logging.StreamHandler[TextIO]):
    """Handler that drops lines while its stream is full, instead of waiting: a log that nobody reads would stop the
    server. A line says how many were dropped, before the first that is written again.

    A pipe that is ready takes a line of up to 4,096 bytes without waiting; only longer ones, with tracebacks, may wait.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._num_dropped = 0
        self._poll = select.poll()
        self._is_file = False
        with suppress(OSError):  # a stream that is no file is never full
            self._poll.register(stream, select.POLLOUT)
            self._is_file = True

    def emit(self, record: logging.LogRecord) -> None:
        if self._num_dropped and self._is_ready():
            super().emit(logging.makeLogRecord({
                "name": __name__, "levelno": logging.WARNING, "levelname": "WARNING",
                "msg": f"{self._num_dropped} lines of the log were dropped: nobody read them"}))
            self._num_dropped = 0
        if self._is_ready():
            super().emit(record)
        else:
            self._num_dropped += 1

    def _is_ready(self) -> bool:
        return not self._is_file or bool(self._poll.poll(0))


def start_logging(process_name: str, settings: LogSettings) -> None:
    """Log to stderr, each record with one write."""
    handler = DroppingStreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter(process_name) if settings.as_json
                         else logging.Formatter(f"%(asctime)s {process_name} %(levelname)s %(message)s"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    for name in LIBRARIES_WITHOUT_DEBUG:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))
    # No line names these. logging looks them up for each record unless it is told not to.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # file and line of the caller
    if settings.as_json:
        logging.captureWarnings(True)
        sys.excepthook = log_uncaught_exception


def log_uncaught_exception(error_type: type[BaseException], error: BaseException,
                           traceback: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("the process ends by an error", exc_info=(error_type, error, traceback))
