"""How a run ends: its results are printed, and kept if that was asked for. Files under benchmarks/results are named by
date, hardware and what was measured.
"""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def hardware() -> str:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]
    return f"{models[0] if models else 'unknown CPU'}, {os.cpu_count()} cores"


def file_name(*words: str) -> str:
    """Without an end."""
    return "-".join(word for word in re.split("[^a-z0-9]+", " ".join(words).lower()) if word)


def tell(date: str, name: str, text: str, *, keep: bool) -> None:
    """The last line of the text is JSON."""
    print(text)
    if keep:
        save(date, name, f"{text}\n")


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def save(date: str, name: str, text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{file_name(date, hardware(), name)}.txt").write_text(text)
