"""Fuzzing: a corpus and some random bytes for every target in each run; with `make fuzz` fuzzers search for minutes."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuzz.targets import TARGETS
from support.servers.client_environments import make_client_environment
from support.servers.weft_process import WeftProcess, run_weft_process

REPOSITORY_ROOT = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "support" / "fuzz" / "corpus"
ATHERIS, SCHEMATHESIS = "atheris==3.0.0", "schemathesis==4.32.5"
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
MAX_BYTES = 600
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# Routes that change the server or answer 501 by design, and pages that are no JSON.
LEFT_OUT = r"^/(api/(pull|push|create|copy|delete)|docs|metrics)$"


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_shows_no_defect(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        TARGETS[name](file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=40)
@given(st.data())
def test_random_bytes_show_no_defect(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(st.binary(max_size=200)))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", TARGETS)
def test_coverage_guided_fuzzing_shows_no_defect(name: str, tmp_path: Path) -> None:
    python = make_client_environment("atheris", ATHERIS)
    site = sysconfig.get_path("purelib")
    completed = subprocess.run(
        [python, "-P", "-m", "support.fuzz.run_atheris", name, tmp_path, CORPUS / name,
         f"-max_total_time={FUZZ_SECONDS}", f"-max_len={MAX_BYTES}", f"-artifact_prefix={tmp_path}/"],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY_ROOT}:{REPOSITORY_ROOT / 'tests'}:{site}"},
        capture_output=True, text=True, errors="replace", check=False)
    crashes = [path.read_bytes() for path in tmp_path.glob("*-*") if path.name.startswith(("crash", "oom", "timeout"))]
    assert not completed.returncode, f"{completed.stderr[-3000:]}\n{crashes}"


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    folder = tmp_path_factory.mktemp("fuzz")
    with run_weft_process(folder, "--max-total-tokens", "256", "--payload-limit", "100000",
                          command=(sys.executable, "-P", "-m", "launcher.cli")) as server:
        yield server


@pytest.mark.fuzz
def test_every_route_answers_drawn_requests_as_documented(weft: WeftProcess, tmp_path: Path) -> None:
    """No status of 5xx, no status or body that the document does not name."""
    python = make_client_environment("schemathesis", SCHEMATHESIS)
    completed = subprocess.run(
        [python.with_name("schemathesis"), "run", f"{weft.url}/api-doc/openapi.json", "--checks", CHECKS,
         "--exclude-path-regex", LEFT_OUT, "--phases", "examples,fuzzing", "--max-examples", f"{FUZZ_SECONDS // 3}",
         "--generation-deterministic", "--workers", "2", "--request-timeout", "60"],
        cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not completed.returncode, completed.stdout[-6000:]
