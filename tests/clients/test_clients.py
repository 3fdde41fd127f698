"""Tests with official, unmodified clients, each in its own environment, against the demo model and small encoders.

The scripts beside this file run in these environments and contain the checks. A client that cannot be installed is
skipped.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.client_environments import environment
from support.small_encoders import encoder
from support.weft_process import SIMULATED, Weft, serving

HERE = Path(__file__).parent
CLIENTS = {
    "hub": ("huggingface_hub==2.4.0",),
    "openai_python": ("openai==3.52.0",),
    "text_generation_client": ("text-generation==0.7.0",),
}
LORAX = {
    "lorax_client": ("lorax-client==0.6.3", "certifi==2024.7.4"),  # the only certifi that lorax-client accepts
}

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weft]:
    with serving(tmp_path_factory.mktemp("weft"), "--max-concurrent-requests", "4") as found:
        yield found


@pytest.fixture(scope="module")
def lorax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weft]:
    with serving(tmp_path_factory.mktemp("lorax"), "--max-concurrent-requests", "4", "--compat", "lorax") as found:
        yield found


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Weft, Weft]]:
    """Start two servers: one labels tokens with a model that finds many entities, the other makes embeddings."""
    folder = tmp_path_factory.mktemp("encoders")
    arguments = ("--compat", "lorax", "--threads", "1")  # threads wait for each other on a busy machine
    with (serving(folder, str(encoder(folder, labels=True, seed=1)), *arguments) as labels,
          serving(folder, str(encoder(folder, labels=False)), *arguments) as vectors):
        yield labels, vectors


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sees_what_it_knows(weft: Weft, tmp_path: Path, name: str) -> None:
    check((weft,), tmp_path, name, CLIENTS[name])


def test_the_client_of_openai_sees_why_there_is_no_answer(tmp_path: Path) -> None:
    faults = ("--simulated-faults", "fail_sequence@decode:3:0;fail_sequence@decode:6:0", "--api-key", "sk-loom")
    with serving(tmp_path, SIMULATED, *faults) as weft:
        check((weft,), tmp_path, "openai_python", CLIENTS["openai_python"], script="openai_failures")


@pytest.mark.parametrize("name", LORAX)
def test_a_client_of_lorax_sees_what_it_knows(lorax: Weft, tmp_path: Path, name: str) -> None:
    check((lorax,), tmp_path, name, LORAX[name])


@pytest.mark.parametrize("name", LORAX)
def test_a_client_of_lorax_sees_what_encoders_tell(encoders: tuple[Weft, Weft], tmp_path: Path, name: str) -> None:
    check(encoders, tmp_path, name, LORAX[name], script="lorax_encoder_client")


def check(wefts: tuple[Weft, ...], folder: Path, name: str, packages: tuple[str, ...], script: str = "") -> None:
    command = [environment(name, *packages), "-P", HERE / f"{script or name}.py", *(weft.url for weft in wefts)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                           env={"HOME": str(folder), "PATH": "/usr/bin:/bin"})
    sys.stdout.write(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr[-3000:]
    assert {weft.status("/health") for weft in wefts} == {200}
