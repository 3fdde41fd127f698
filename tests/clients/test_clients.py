"""Official clients, unmodified, each in an environment of its own, against the model that comes with weft.

What they should see is told by the scripts beside this file, which run there. A client that cannot be installed is
skipped.
"""

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Weft, serving

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".clients"
CLIENTS = {
    "hub": ("huggingface_hub==2.4.0",),
    "openai_python": ("openai==3.52.0",),
    "text_generation_client": ("text-generation==0.7.0",),
}

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weft]:
    with serving(tmp_path_factory.mktemp("weft"), "--max-concurrent-requests", "4") as found:
        yield found


def environment(name: str) -> Path:
    """Made once, and kept."""
    folder = ENVIRONMENTS / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        made = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *CLIENTS[name]],
                              capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"{name} cannot be installed: {(made.stderr.strip().splitlines() or ['?'])[-1]}")
        ready.touch()
    return python


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sees_what_it_knows(weft: Weft, tmp_path: Path, name: str) -> None:
    ended = subprocess.run([environment(name), "-P", HERE / f"{name}.py", weft.url], cwd=tmp_path, capture_output=True,
                           text=True, check=False, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    sys.stdout.write(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr[-3000:]
    assert weft.status("/health") == 200
