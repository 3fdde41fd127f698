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
from support.metrics_page import get_failure_counts, parse_metrics
from support.servers.client_environments import make_client_environment
from support.servers.weft_process import DEFAULT_PROMPT, SIMULATED_MODEL, WeftProcess, run_weft_process

pytestmark = [pytest.mark.long, pytest.mark.fuzz, pytest.mark.timeout(1800)]

TOOL_PACKAGES = ("schemathesis==4.32.5", "openapi-spec-validator==0.9.0")
MIN_REQUESTS = 5000
# random cases; about 2500 further cases for all routes are derived from the document alone
RANDOM_CASES_PER_ROUTE = 400
# Checks that valid values are accepted and all others rejected are left out: streams report errors with status 200,
# /tokenize ignores parameters, and some limits are settings. tests/router/http/test_values.py tests accepted values.
SCHEMATHESIS_CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
                       "response_schema_conformance", "unsupported_method", "allow_header_conformance")
# Responses are short and take no time.
SERVER_ARGUMENTS = ("--simulated-time-scale", "0", "--simulated-mean-output-length", "8", "--max-total-tokens", "512")
DOCUMENT_PATH = "/api-doc/openapi.json"


@pytest.fixture(scope="module")
def tools_folder() -> Path:
    """Return the folder with the programs of the environment."""
    return make_client_environment("document", *TOOL_PACKAGES).parent


def run_command(folder: Path, *command: str | Path) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                           env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"})
    assert ended.returncode == 0, f"{ended.stdout[-20_000:]}\n{ended.stderr[-3000:]}"


def test_openapi_document_is_valid(tools_folder: Path, tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL,
                          *SERVER_ARGUMENTS) as weft, urlopen(weft.url + DOCUMENT_PATH) as answer:
        (tmp_path / "openapi.json").write_bytes(answer.read())
    run_command(tmp_path, tools_folder / "openapi-spec-validator", "openapi.json")


def test_server_never_fails_and_all_answers_are_documented(
        tools_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = os.environ.get("WEFT_SEED") or str(random.SystemRandom().randrange(2**32))
    with capsys.disabled():
        print(f"\nseed {seed}; again with WEFT_SEED={seed}")
    with run_weft_process(tmp_path, SIMULATED_MODEL, *SERVER_ARGUMENTS) as weft:
        run_command(tmp_path, tools_folder / "schemathesis", "run", weft.url + DOCUMENT_PATH, "--seed", seed, "-n",
                    str(RANDOM_CASES_PER_ROUTE), "--phases", "coverage,fuzzing", "--checks",
                    ",".join(SCHEMATHESIS_CHECKS), "--continue-on-failure", "--generation-database", "none", "--report",
                    "ndjson", "--report-ndjson-path", "told.ndjson")
        check_failure_counters(weft)
        routes = get_documented_routes(weft)
        assert len(weft.generate(5, DEFAULT_PROMPT)) == 5
    responses = list(iter_routes_and_statuses(tmp_path / "told.ndjson"))
    requested_routes, statuses = {route for route, _ in responses}, Counter(status for _, status in responses)
    with capsys.disabled():
        print(f"{len(responses)} requests to {len(requested_routes)} routes, by status: {dict(statuses)}")
    assert len(responses) >= MIN_REQUESTS
    assert requested_routes == routes
    assert {200, 400, 405, 415, 422} <= statuses.keys() <= {200, 400, 404, 405, 413, 415, 422, 429}


def get_documented_routes(weft: WeftProcess) -> set[str]:
    """Return all documented routes except the document's own, from which schemathesis loads it."""
    with urlopen(weft.url + DOCUMENT_PATH) as answer:
        paths = json.load(answer)["paths"]
    routes = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    return routes - {f"GET {DOCUMENT_PATH}"}


def check_failure_counters(weft: WeftProcess) -> None:
    """Check the failure counters, which include the server's own errors within streams."""
    with urlopen(f"{weft.url}/metrics") as answer:
        samples = parse_metrics(answer.read().decode())
    server_errors = {"incomplete", "generation", "embedding_failure", "classification_failure"}
    assert not get_failure_counts(samples).keys() & server_errors
    assert samples["tgi_request_success"] > 100
    assert samples["tgi_batch_current_size"] == samples["tgi_queue_size"] == 0


def iter_routes_and_statuses(report: Path) -> Iterator[tuple[str, int]]:
    """Yield the route and the response status of each request in the report of schemathesis."""
    with report.open() as lines:
        for line in lines:
            recorder: dict[str, Any] = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
            for interaction in recorder.get("interactions", {}).values():
                yield recorder["label"], interaction["response"]["status_code"]
