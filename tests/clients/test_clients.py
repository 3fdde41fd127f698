"""Official clients, unmodified, each in an environment of its own, against the model that comes with weft.

What they should see is told by the scripts beside this file, which run there. A client that cannot be installed is
skipped.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import environment
from launched import Weft, serving

HERE = Path(__file__).parent
CLIENTS = {
    "hub": ("huggingface_hub==2.4.0",),
    "openai_python": ("openai==3.52.0",),
    "text_generation_client": ("text-generation==0.7.0",),
}
LORAX = {
    "lorax_client": ("lorax-client==0.6.3", "certifi==2024.7.4"),  # the only one that it takes
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


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sees_what_it_knows(weft: Weft, tmp_path: Path, name: str) -> None:
    check(weft, tmp_path, name, CLIENTS[name])


@pytest.mark.parametrize("name", LORAX)
def test_a_client_of_lorax_sees_what_it_knows(lorax: Weft, tmp_path: Path, name: str) -> None:
    check(lorax, tmp_path, name, LORAX[name])


def check(weft: Weft, folder: Path, name: str, packages: tuple[str, ...]) -> None:
    ended = subprocess.run([environment(name, *packages), "-P", HERE / f"{name}.py", weft.url], cwd=folder,
                           capture_output=True, text=True, check=False,
                           env={"HOME": str(folder), "PATH": "/usr/bin:/bin"})
    sys.stdout.write(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr[-3000:]
    assert weft.status("/health") == 200
