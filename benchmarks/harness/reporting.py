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

REPOSITORY_ROOT = Path(__file__).parents[2]
RESULTS_FOLDER = REPOSITORY_ROOT / "benchmarks" / "results" if (REPOSITORY_ROOT
                                                                / "pyproject.toml").exists() else Path("results")
PATH_OPTIONS = "--folder", "--models"


def describe_hardware() -> str:
    cpu_names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name")]
    return f"{cpu_names[0] if cpu_names else 'unknown CPU'}, {os.cpu_count()} cores"


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def collect_run_metadata(program: str = "", path_options: Collection[str] = PATH_OPTIONS) -> dict[str, Any]:
    """Return what every result carries: date, hardware, versions and command line.

    `program` defaults to the module that was started; options in `path_options` are left out."""
    arguments, commit_id = drop_path_options(sys.argv[1:], path_options), read_git_commit()
    return {"date": today(), "hardware": describe_hardware(),
            "versions": {"weft": version("weft"), **({"commit": commit_id} if commit_id else {}),
                         "Python": platform.python_version(), "torch": version("torch")},
            "command": " ".join([program or describe_program(), *map(shlex.quote, arguments)])}


def read_git_commit(root: Path = REPOSITORY_ROOT) -> str:
    """Return the commit of the checkout, with a plus if files were changed since; empty without checkout or git."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return ""
    completed = subprocess.run([git, "describe", "--always", "--exclude=*", "--dirty=+"], cwd=root, capture_output=True,
                               text=True, check=False)
    return completed.stdout.strip()


def describe_program() -> str:
    spec = sys.modules["__main__"].__spec__
    return f"python -P -m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name


def drop_path_options(arguments: Sequence[str], path_options: Collection[str] = PATH_OPTIONS) -> list[str]:
    """Drop the options with paths, which are private to this machine, and their values."""
    option_indexes = [number for number, word in enumerate(arguments) if word.partition("=")[0] in path_options]
    dropped_indexes = {*option_indexes, *(number + 1 for number in option_indexes if "=" not in arguments[number])}
    return [word for number, word in enumerate(arguments) if number not in dropped_indexes]


def format_json_line(results: Mapping[str, Any]) -> str:
    """Return the results with date, hardware, versions and command line as one line of JSON."""
    return json.dumps({**results, **collect_run_metadata()})


def report_results(name: str, text: str, results: Mapping[str, Any], *, should_save: bool) -> None:
    """Print the text, and the results as JSON in the last line; with `should_save`, save both."""
    report = f"{text}\n{format_json_line(results)}"
    print(report)
    if should_save:
        save_report(name, f"{report}\n")


def make_file_name(*words: str) -> str:
    """Return a file name made of these words, without extension."""
    return "-".join(word for word in re.split("[^a-z0-9]+", " ".join(words).lower()) if word)


def save_report(name: str, text: str) -> None:
    RESULTS_FOLDER.mkdir(exist_ok=True)
    (RESULTS_FOLDER / f"{make_file_name(today(), describe_hardware(), name)}.txt").write_text(text)


def save_json(name: str, results: Mapping[str, Any]) -> None:
    """Save the results with date, hardware, versions and command line as a JSON file of many lines."""
    RESULTS_FOLDER.mkdir(exist_ok=True)
    path = RESULTS_FOLDER / f"{make_file_name(today(), describe_hardware(), name)}.json"
    path.write_text(f"{json.dumps({**results, **collect_run_metadata()}, indent=1)}\n")
