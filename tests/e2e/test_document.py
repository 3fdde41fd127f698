"""Tests of the OpenAPI document with external tools.

openapi-spec-validator checks that the document is valid. schemathesis sends thousands of valid and invalid requests
and checks that the server never fails and that the document describes every answer.
"""

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from support.client_environments import environment
from support.metrics_page import failures, read
from support.weft_process import PROMPT, SIMULATED, Weft, serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PACKAGES = ("schemathesis==4.32.5", "openapi-spec-validator==0.9.0")
NUM_REQUESTS = 5000
PER_ROUTE = 400  # random cases; about 2500 further cases for all routes are derived from the document alone
# Checks that valid values are accepted and all others rejected are left out: streams report errors with status 200,
# /tokenize ignores parameters, and some limits are settings. tests/router/http/test_values.py tests accepted values.
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "unsupported_method", "allow_header_conformance")
# Short answers without waiting.
SETTINGS = ("--simulated-time-scale", "0", "--simulated-mean-output-length", "8", "--max-total-tokens", "512")
DOCUMENT = "/api-doc/openapi.json"


@pytest.fixture(scope="module")
def programs() -> Path:
    """Return the folder with the programs of the environment."""
    return environment("document", *PACKAGES).parent


def run(folder: Path, *command: str | Path) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                           env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"})
    assert ended.returncode == 0, f"{ended.stdout[-20_000:]}\n{ended.stderr[-3000:]}"


def test_the_document_is_valid(programs: Path, tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, *SETTINGS) as weft, urlopen(weft.url + DOCUMENT) as answer:
        (tmp_path / "openapi.json").write_bytes(answer.read())
    run(tmp_path, programs / "openapi-spec-validator", "openapi.json")


def test_whatever_is_asked_no_answer_is_a_fault_of_ours_or_unknown_to_the_document(
        programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = os.environ.get("WEFT_SEED") or str(random.SystemRandom().randrange(2**32))
    with capsys.disabled():
        print(f"\nseed {seed}; again with WEFT_SEED={seed}")
    with serving(tmp_path, SIMULATED, *SETTINGS) as weft:
        run(tmp_path, programs / "schemathesis", "run", weft.url + DOCUMENT, "--seed", seed, "-n", str(PER_ROUTE),
            "--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS), "--continue-on-failure",
            "--generation-database", "none", "--report", "ndjson", "--report-ndjson-path", "told.ndjson")
        check_counts(weft)
        routes = routes_of(weft)
        assert len(weft.generate(5, PROMPT)) == 5
    asked = list(answered(tmp_path / "told.ndjson"))
    statuses = Counter(status for _, status in asked)
    with capsys.disabled():
        print(f"{len(asked)} requests to {len({route for route, _ in asked})} routes, by status: {dict(statuses)}")
    assert len(asked) >= NUM_REQUESTS
    assert {route for route, _ in asked} == routes
    assert {200, 400, 405, 415, 422} <= statuses.keys() <= {200, 400, 404, 405, 413, 415, 422, 429}


def routes_of(weft: Weft) -> set[str]:
    """Return all documented routes except the document's own, from which schemathesis loads it."""
    with urlopen(weft.url + DOCUMENT) as answer:
        paths = json.load(answer)["paths"]
    routes = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    return routes - {f"GET {DOCUMENT}"}


def check_counts(weft: Weft) -> None:
    """Check the failure counters, which include the server's own errors within streams."""
    with urlopen(f"{weft.url}/metrics") as answer:
        samples = read(answer.read().decode())
    ours = {"incomplete", "generation", "embedding_failure", "classification_failure"}
    assert not failures(samples).keys() & ours
    assert samples["tgi_request_success"] > 100
    assert samples["tgi_batch_current_size"] == samples["tgi_queue_size"] == 0


def answered(report: Path) -> Iterator[tuple[str, int]]:
    """Yield the route and status of each request."""
    with report.open() as lines:
        for line in lines:
            told: dict[str, Any] = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
            for interaction in told.get("interactions", {}).values():
                yield told["label"], interaction["response"]["status_code"]
