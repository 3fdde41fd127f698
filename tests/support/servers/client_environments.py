"""Virtual environments for third-party clients, each created once under `.clients` and kept."""

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
