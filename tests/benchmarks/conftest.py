"""What matplotlib keeps."""

import pytest
from benched import run

from benchmarks.bench import plots


@pytest.fixture(scope="session")
def fonts() -> None:
    """Their files stay open from the first text that is drawn."""
    plots.latencies([run()])
