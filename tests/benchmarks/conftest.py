"""Fixture for the files that matplotlib keeps open."""

import pytest
from benched import run

from benchmarks.bench import plots


@pytest.fixture(scope="session")
def fonts() -> None:
    """Draw a plot before the leak check of a test: matplotlib keeps font files open from the first text on."""
    plots.latencies([run()])
