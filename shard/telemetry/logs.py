"""Logging of all processes of a server: lines of text for people, or a JSON object on each line for programs.

Router and launcher use this module, too.
"""

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType

LEVELS = ("debug", "info", "warning", "error")
# Programs that read the logs of text-generation-inference know only its four names of levels.
WORDS = {logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}


@dataclass(frozen=True, slots=True)
class Logs:
    level: str = "info"
    as_json: bool = False


class JsonLines(logging.Formatter):
    """Formatter of JSON lines. `process` names the process, such as `shard 0`; `target` is the module that logs."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        told = {"timestamp": moment.replace("+00:00", "Z"), "level": WORDS.get(record.levelno, record.levelname),
                "message": record.getMessage().rstrip("\n"), "target": record.name, "process": self._process}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def start_logging(process: str, logs: Logs) -> None:
    """Log to stderr, each record with one write."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(process) if logs.as_json else
                         logging.Formatter(f"%(asctime)s {process} %(levelname)s %(message)s"))
    logging.basicConfig(level=logs.level.upper(), handlers=[handler])
    if logs.as_json:
        logging.captureWarnings(True)
        sys.excepthook = log_uncaught


def log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("the process ends by an error", exc_info=(kind, error, trace))
