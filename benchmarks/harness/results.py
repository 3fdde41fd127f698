"""Output of a benchmark: its results are printed and, on request, saved.

Files under benchmarks/results are named by date, hardware and what was measured.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" if (ROOT / "pyproject.toml").exists() else Path("results")
PLACES = "--folder", "--models"


def hardware() -> str:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]
    return f"{models[0] if models else 'unknown CPU'}, {os.cpu_count()} cores"


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def made(program: str = "", places: Collection[str] = PLACES) -> dict[str, Any]:
    """Return what every result carries: date, hardware, versions and command line.

    `program` defaults to the module that was started; options in `places` are left out."""
    words, source = without_places(sys.argv[1:], places), commit()
    return {"date": today(), "hardware": hardware(),
            "versions": {"weft": version("weft"), **({"commit": source} if source else {}),
                         "Python": platform.python_version(), "torch": version("torch")},
            "command": " ".join([program or started(), *map(shlex.quote, words)])}


def commit(root: Path = ROOT) -> str:
    """Return the commit of the checkout, with a plus if files were changed since; empty without checkout or git."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return ""
    asked = subprocess.run([git, "describe", "--always", "--exclude=*", "--dirty=+"], cwd=root, capture_output=True,
                           text=True, check=False)
    return asked.stdout.strip()


def started() -> str:
    spec = sys.modules["__main__"].__spec__
    return f"python -P -m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name


def without_places(words: Sequence[str], places: Collection[str] = PLACES) -> list[str]:
    """Drop the options with paths, which are private to this machine, and their values."""
    named = [number for number, word in enumerate(words) if word.partition("=")[0] in places]
    left_out = {*named, *(number + 1 for number in named if "=" not in words[number])}
    return [word for number, word in enumerate(words) if number not in left_out]


def as_line(found: Mapping[str, Any]) -> str:
    """Return the results with date, hardware, versions and command line as one line of JSON."""
    return json.dumps({**found, **made()})


def tell(name: str, text: str, found: Mapping[str, Any], *, keep: bool) -> None:
    """Print the text, and the results as JSON in the last line; with `keep`, save both."""
    whole = f"{text}\n{as_line(found)}"
    print(whole)
    if keep:
        save(name, f"{whole}\n")


def file_name(*words: str) -> str:
    """Return a file name made of these words, without extension."""
    return "-".join(word for word in re.split("[^a-z0-9]+", " ".join(words).lower()) if word)


def save(name: str, text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{file_name(today(), hardware(), name)}.txt").write_text(text)
