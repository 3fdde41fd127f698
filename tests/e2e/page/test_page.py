"""The page in Chromium: every control on a desktop's and a phone's width in both themes, and two tenants with keys.

Each drive fails for an error on the console, a request to another host, a grave fault that axe finds, and a page wider
than the screen. Screenshots are kept in the folder that WEFT_PAGE_SHOTS names.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.servers.client_environments import make_node_environment
from support.servers.weft_process import run_weft_process

DRIVES_FOLDER = Path(__file__).parent
PACKAGES = ("puppeteer-core@25.16.0", "axe-core@4.14.1")
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
KEYS = {"sk-first": {"tenant": "first", "role": "admin"}, "sk-second": {"tenant": "second"}}

pytestmark = [pytest.mark.page, pytest.mark.timeout(600)]


def find_chromium() -> str:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    return chromium


def drive(name: str, url: str, folder: Path, **settings: object) -> None:
    """Run a drive in an environment with its packages."""
    chromium = find_chromium()
    environment = make_node_environment("page", *PACKAGES)
    for script in DRIVES_FOLDER.glob("*.mjs"):
        shutil.copy(script, environment)  # modules are found beside the script
    shots = Path(os.environ.get("WEFT_PAGE_SHOTS", folder)) / folder.name
    shots.mkdir(parents=True, exist_ok=True)
    completed = subprocess.run(
        ["node", environment / name, json.dumps({"url": url, "chromium": chromium, "folder": str(shots), **settings})],
        capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, ""), completed.stderr[-3000:]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_control_works(tmp_path: Path, screen: dict[str, int], theme: str) -> None:
    with run_weft_process(tmp_path, "--max-batch-size", "8") as weft:
        drive("drive_controls.mjs", weft.url, tmp_path, theme=theme, **screen)


def test_page_works_behind_a_prefix(tmp_path: Path) -> None:
    with run_weft_process(tmp_path) as weft:
        drive("drive_prefix.mjs", weft.url, tmp_path, theme="dark", **DESKTOP)


def test_tenants_see_nothing_of_each_other(tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    keys_file.write_text(json.dumps(KEYS))
    with run_weft_process(tmp_path, "--api-keys", str(keys_file)) as weft:
        drive("drive_tenants.mjs", weft.url, tmp_path, theme="light", keys=[*KEYS], **DESKTOP)
