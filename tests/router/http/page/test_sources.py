"""The modules of the page that draw nothing, tested in Node: `*.test.ts` beside this file."""

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS_FOLDER = Path(__file__).parent
PAGE_FOLDER = TESTS_FOLDER.parents[3] / "router/http/page"

pytestmark = pytest.mark.page


@pytest.mark.parametrize("path", sorted(TESTS_FOLDER.glob("*.test.ts")), ids=lambda path: path.name)
def test_tests_in_node_pass(tmp_path: Path, path: Path) -> None:
    esbuild = PAGE_FOLDER / "node_modules/.bin/esbuild"
    if shutil.which("node") is None or not esbuild.exists():
        pytest.skip("Node.js is not installed, or make page has not installed esbuild")
    bundle = tmp_path / "tests.mjs"
    subprocess.run([esbuild, path, "--bundle", "--platform=node", "--format=esm", "--jsx=automatic",
                    "--jsx-import-source=preact", "--loader:.css=empty", f"--outfile={bundle}", "--log-level=error"],
                   check=True)
    completed = subprocess.run(["node", "--test", bundle], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-3000:]
