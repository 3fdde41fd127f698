"""Fixture for the files that matplotlib keeps open."""

import pytest
from support.fake_bench_results import make_sample_result

from benchmarks.bench.report import plots


@pytest.fixture(scope="session")
def fonts() -> None:
    """Draw a plot before the leak check of a test: matplotlib keeps font files open from the first text on."""
    plots.plot_latency([make_sample_result()])
