"""Virtual environments for third-party clients, each created once under `.clients` and kept."""

import subprocess
import venv
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".clients"


def environment(name: str, *packages: str) -> Path:
    """Return the Python of an environment with these packages; skip the test if they cannot be installed."""
    folder = FOLDER / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists() or ready.read_text().split() != [*packages]:
        venv.create(folder, with_pip=True, clear=True)
        made = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages],
                              capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"{name} cannot be installed: {(made.stderr.strip().splitlines() or ['?'])[-1]}")
        ready.write_text("\n".join(packages))
    return python
