"""Environments for third-party clients, in Python and JavaScript, each created once under `.clients` and kept."""

import shutil
import subprocess
import venv
from pathlib import Path

import pytest

ENVIRONMENTS_FOLDER = Path(__file__).parents[3] / ".clients"


def make_client_environment(name: str, *packages: str) -> Path:
    """Return the Python of an environment with these packages; skip the test if they cannot be installed."""
    folder = ENVIRONMENTS_FOLDER / name
    python, ready_file = folder / "bin" / "python", folder / "ready"
    if not ready_file.exists() or ready_file.read_text().split() != [*packages]:
        venv.create(folder, with_pip=True, clear=True)
        completed = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages],
                                   capture_output=True, text=True, check=False)
        if completed.returncode:
            pytest.skip(f"{name} cannot be installed: {(completed.stderr.strip().splitlines() or ['?'])[-1]}")
        ready_file.write_text("\n".join(packages))
    return python


def make_node_environment(name: str, *packages: str) -> Path:
    """Return a folder with these packages of npm; skip the test without Node.js, or if they cannot be installed."""
    folder = ENVIRONMENTS_FOLDER / name
    ready_file = folder / "ready"
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed")
    if not ready_file.exists() or ready_file.read_text().split() != [*packages]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        completed = subprocess.run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", *packages],
                                   cwd=folder, capture_output=True, text=True, check=False)
        if completed.returncode:
            pytest.skip(f"{name} cannot be installed: {(completed.stderr.strip().splitlines() or ['?'])[-1]}")
        ready_file.write_text("\n".join(packages))
    return folder
