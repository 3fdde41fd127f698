"""Checks by promtool, the command of Prometheus for rules and pages of metrics."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from router.telemetry.instruments import MetricType
from router.telemetry.metric_definitions import all_metric_definitions
from router.text.prompt_encoder import TokenLimits

DEPLOY_FOLDER = Path(__file__).parents[2] / "deploy"
FAMILIES_BY_NAME = {family.name: family
                    for family in all_metric_definitions(TokenLimits(1000, 4000), 1, with_adapters=True)}


def run_promtool(*arguments: str, stdin_text: str = "") -> tuple[int, set[str]]:
    """Run promtool; return its exit code and its output lines."""
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt install prometheus; or PROMTOOL=/path/to/promtool)")
    done = subprocess.run([promtool, *arguments], cwd=DEPLOY_FOLDER, input=stdin_text, capture_output=True, text=True,
                          check=False)
    return done.returncode, {line.strip() for line in (done.stdout + done.stderr).splitlines()}


def list_accepted_complaints() -> set[str]:
    """Return the complaints of promtool that are accepted: they are about names that we did not choose.

    Counters have the names of text-generation-inference, without `_total` and two of them with `_count`; our own
    counters follow that style. Names with a colon are those that the Kubernetes gateway queries.
    """
    counters = [name for name, family in FAMILIES_BY_NAME.items() if family.metric_type is MetricType.COUNTER]
    return {
        *(f'{name} counter metrics should have "_total" suffix' for name in counters),
        *(f'{name} non-histogram and non-summary metrics should not have "_count" suffix'
          for name in ("tgi_request_count", "tgi_batch_inference_count")),
        *(f"{name} metric names should not contain ':'" for name in FAMILIES_BY_NAME if ":" in name)}


def check_page_with_promtool(page: str) -> None:
    """Assert that promtool accepts the page; with exit code 3 promtool complains about names only."""
    code, complaints = run_promtool("check", "metrics", stdin_text=page)
    assert complaints <= list_accepted_complaints()
    assert code == (3 if complaints else 0)
