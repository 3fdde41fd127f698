"""Fuzzing: a corpus and some random bytes for every target in each run; with `make fuzz` a fuzzer searches for minutes.

`make fuzz` runs `tests/e2e/api/test_document.py`, too, which sends drawn requests to all routes.
"""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuzz.targets import TARGETS
from support.servers.client_environments import make_client_environment

REPOSITORY_ROOT = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "support" / "fuzz" / "corpus"
ATHERIS = "atheris==3.0.0"
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
MAX_BYTES = 600


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
